"""Decompositions of stacked weights and of single ones, and the stores that keep them.

`hosvd` decomposes stacks (with the eigenvectors of `eigen`). `store` keeps these, and `svd` the singular vectors of single
weights, as files of `factor_file` on one `shelf`, found by the weights' hash (`hashing`). `ticking` says
that a long decomposition goes on.
"""
