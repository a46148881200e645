"""Decompositions of stacked weights, and the store that keeps them.

`hosvd` decomposes (with the eigenvectors of `eigen`); `store` keeps decompositions as files of `factor_file`, found by the
weights' hash (`hashing`); `energy` says what the ranks keep.
"""
