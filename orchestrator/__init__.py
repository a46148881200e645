"""Many training runs: the sweep file, its plan, the Ray Tune run, the record in MLflow, the Pareto front."""
