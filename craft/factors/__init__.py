"""Decompositions of stacked weights, and the store that keeps them.

`hosvd` decomposes a stack; `stacks` takes the factors of stacks from the `store`.
"""
