"""This package contains the targets: how target models are built and trained."""
