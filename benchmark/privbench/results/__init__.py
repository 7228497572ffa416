"""The file format of results: one record per trial, its files, and statistics over seeds."""
