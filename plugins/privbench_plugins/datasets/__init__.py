"""This package contains the datasets."""
