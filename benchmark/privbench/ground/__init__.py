"""What every room uses: text, values, errors, columns, judges, secrets, files, the store."""
