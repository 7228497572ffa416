"""The audit of a model that exists already: rows, shift, the suite that suits it, words."""
