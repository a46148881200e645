"""Training: one run from its `RunSpec` to scores and a saved adapter (`training`), and cuts of it (`cuts`)."""
