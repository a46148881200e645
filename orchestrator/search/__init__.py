"""Decides which configuration comes next, which trial continues, and when a sweep ends. Only this folder imports Optuna."""
