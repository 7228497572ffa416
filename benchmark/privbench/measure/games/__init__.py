"""The games: each poses a question, hides the truth and scores the answer."""
