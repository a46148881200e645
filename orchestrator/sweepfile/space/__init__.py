"""The search space: `dimensions` is what it is, `blocks` reads it from a file."""
