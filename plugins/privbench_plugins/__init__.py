"""In-tree plugins: one file, one method family, one entry point."""
