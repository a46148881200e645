"""Decompositions of stacked weights and of single ones, and the store that keeps them.

`hosvd` decomposes a stack; `stacks` and `svd` take the factors of stacks and the singular vectors of single weights from the
`store`. `ticking` says that a long decomposition continues.
"""
