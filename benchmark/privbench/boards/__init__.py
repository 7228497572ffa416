"""Results, and the boards rendered from them, without importing torch."""
