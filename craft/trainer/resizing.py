"""Fits an adapter that was trained at one rank to a run at another rank: J is padded with the identity, or sliced.

    J (r x r)  ->  | J  0 |      r' > r            J  ->  J[:r', :r']      r' < r
                   | 0  I |

HOSVD factors nest: the factors of a smaller rank are the first columns of those of a larger one, so the first r directions are
the same before and after. New directions start as in the base model. Matrices of other methods keep their leading block, and
the rest starts as in a new run; for LoRA (B at 0) the model then computes the same as before.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

RESIZABLE = ("rank", "ranks", "alpha", "dropout", "rate_scaling")
"""Parameters in which a run may differ from the run whose adapter it starts from."""


def resized(learnt: Mapping[str, Tensor], start: Mapping[str, Tensor], identity: bool) -> dict[str, Tensor]:
    """`learnt` in the shapes of `start`, by name.

    Args:
        learnt: what was saved; names that `start` lacks are left out.
        start: the weights of the model that goes on, as its method began them.
        identity: whether square matrices grow by the identity (CRAFT's J).

    Raises:
        ValueError: a weight has another number of dimensions, so it is no other rank of the same thing.
    """
    return {name: _fit(name, learnt[name], first, identity) for name, first in start.items() if name in learnt}


def _fit(name: str, learnt: Tensor, start: Tensor, identity: bool) -> Tensor:
    if learnt.shape == start.shape:
        return learnt
    if learnt.dim() != start.dim():
        raise ValueError(
            f"{name} has {learnt.dim()} dimensions where {start.dim()} are wanted: it is no other rank of the same"
        )
    square = start.dim() == 2 and start.shape[0] == start.shape[1]
    grown = torch.eye(start.shape[0], dtype=start.dtype) if identity and square else start.detach().clone()
    shared = tuple(slice(0, min(one, other)) for one, other in zip(learnt.shape, start.shape, strict=True))
    grown[shared] = learnt[shared].to(start.dtype)
    return grown
