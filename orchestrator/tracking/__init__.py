"""The tracking store, the only code that imports MLflow: writes and reads the runs of a sweep, its artifacts and models."""
