"""Decompositions of stacked weights, and the store that keeps them."""
