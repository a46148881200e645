"""What a sweep has recorded, for people: tables, pictures, picked adapters, and its runs in MLflow."""
