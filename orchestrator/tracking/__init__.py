"""The tracking store, the only code that imports MLflow: makes the runs of a sweep as they should be, and reads them."""
