"""Games: the question asked, the truth kept back, the score of an answer."""
