"""Decides which configuration comes next, which trial goes on, and when a sweep ends. Optuna is imported here alone."""
