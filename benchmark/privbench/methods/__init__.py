"""What a plugin is: the contracts of datasets, targets and defenses, and their context."""
