"""The command line: commands, cards, and the index of methods that answers without torch."""
