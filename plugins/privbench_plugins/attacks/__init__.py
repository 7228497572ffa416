"""Attack plugins, one module per attack or family of attacks."""
