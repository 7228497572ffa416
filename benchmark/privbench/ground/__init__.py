"""What every room uses: text, checks of values, errors, columns, files, the artifact store."""
