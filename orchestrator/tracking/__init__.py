"""The tracking store, the only code that imports MLflow: makes the runs of a sweep equal to their pictures, and reads them."""
