"""Training: phases, the loop that runs them, and models with named parts."""
