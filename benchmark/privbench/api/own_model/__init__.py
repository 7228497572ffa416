"""The audit of a model that exists already: rows, shift, the suite that suits it, words."""

#: What a model may answer.
KINDS = ("posteriors", "logits", "labels", "embeddings", "values")
