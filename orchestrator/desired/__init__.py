"""What the runs of a sweep in MLflow should be, as functions of its state. Nothing here asks the store."""
