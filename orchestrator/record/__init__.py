"""A sweep's record: its folder on disk and its runs in MLflow. The only code that imports MLflow."""
