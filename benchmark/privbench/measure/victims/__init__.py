"""From a target and defenses to a served victim."""
