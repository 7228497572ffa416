"""Results and the pages made of them. Nothing here imports torch."""
