"""What a run learnt at one rank, as the beginning of a run at another: J grows by identity padding and shrinks by slicing.

    J (r x r)  ->  | J  0 |      r' > r            J  ->  J[:r', :r']      r' < r
                   | 0  I |

HOSVD factors nest: the factors of a smaller rank are the first columns of those of a larger one, so the first r directions are
the same ones before and after. The new directions begin as they are in the base model. Other methods' matrices keep their
leading block; the rest begins as the method begins it, which for LoRA (B at 0) leaves what the model computes as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

RESIZABLE = ("rank", "ranks", "alpha", "dropout")
"""Parameters in which a run may differ from the one that it goes on from."""


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
