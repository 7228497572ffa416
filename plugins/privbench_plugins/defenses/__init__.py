"""This package contains the defenses."""
