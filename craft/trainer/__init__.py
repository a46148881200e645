"""One training run, from its settings to its result.

`training` prepares a run and `run` takes it through evaluations and checkpoints to its end. `loop` makes the optimizer steps,
by the numbers and with the optimizer of `steps`. `checkpoint` and `adapter_folder` are what stays on disk.
`process` isolates a run from other runs; `meter` and `counting` say what it costs.
"""
