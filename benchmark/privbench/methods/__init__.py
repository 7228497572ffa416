"""The plugin interfaces: datasets, targets, defenses and the context they receive."""
