"""How a sweep stands: its trials, what happened to them as typed events, and the fold of these."""
