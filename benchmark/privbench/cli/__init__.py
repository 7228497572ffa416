"""The command line: commands, progress, tables and cards."""
