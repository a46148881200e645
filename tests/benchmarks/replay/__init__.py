"""Sweeps replayed from recorded learning curves, with simulated time."""
