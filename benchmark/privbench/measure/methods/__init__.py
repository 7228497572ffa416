"""What methods are and what they get: interfaces, contexts and the oracle."""
