"""The search space: `dimensions` is what it is, `blocks` and what `blocks` calls read it from a file."""
