"""The state of a sweep: its trials, what happened to them as typed events, and the fold of these events."""
