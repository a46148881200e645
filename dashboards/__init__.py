"""Reading finished and running sweeps from the tracking store: a live page and one static file. Neither torch nor Ray."""
