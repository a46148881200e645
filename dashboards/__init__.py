"""Shows sweeps, running or finished, from the tracking store: a live page and one static file. Needs neither torch nor Ray."""
