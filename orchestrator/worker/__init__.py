"""One trial in a worker process."""
