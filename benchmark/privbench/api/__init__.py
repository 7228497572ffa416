"""What Python users call: run a suite, load a model, audit a model, look at results."""
