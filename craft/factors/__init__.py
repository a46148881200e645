"""Decompositions of stacked weights (`hosvd`), the store that keeps them, and products of thin matrices cut to a lower rank."""
