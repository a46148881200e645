"""One training run, from its settings to its result: steps, checkpoints, teams of processes, costs."""
