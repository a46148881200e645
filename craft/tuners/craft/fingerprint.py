"""The record of the factors that an adapter was trained with, and its check when the adapter is loaded.

    craft_fingerprint.<stack>_weights _shape      SHA-256 of the stacked weights, 32 bytes; L, d_out, d_in and r1, r2, r3
    craft_fingerprint.<stack>_algorithm _sketch   `craft.factors.hosvd.ALGORITHM`, as bytes; `TuckerFactors.sketch`
    craft_factors.<stack>_core _u1 _u2 _u3        only with save_factors

J have a meaning only in one basis, so an adapter is refused if its factors come out differently here. It is also refused on
other base weights, even if it carries its factors: the change that it learnt belongs to the weights on which it was learnt.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from craft.factors.hosvd import ALGORITHM, TuckerFactors, sketch_difference
from craft.tuners.craft.stack import PARTS, Stack

FINGERPRINT = "craft_fingerprint."
FACTORS = "craft_factors."
TOLERANCE = 1e-3
"""Largest sketch difference at which two bases are the same (`sketch_difference`)."""

_ELSEWHERE = "To use it with other weights, load it on its own base and export it with to_lora()."


def record(stacks: Mapping[str, Stack], with_factors: bool) -> dict[str, Tensor]:
    """Returns tensors that identify the stacks' factors, and the factors themselves on request; none on the meta device."""
    tensors: dict[str, Tensor] = {}
    for name, stack in stacks.items():
        if stack.factors is None or stack.weights_hash is None:
            continue
        parts = {
            "weights": torch.frombuffer(bytearray.fromhex(stack.weights_hash), dtype=torch.uint8),
            "shape": torch.tensor([*stack.shape, *stack.ranks]),
            "algorithm": torch.frombuffer(bytearray(ALGORITHM.encode()), dtype=torch.uint8),
            "sketch": stack.factors.sketch().float(),
        }
        tensors.update({f"{FINGERPRINT}{name}_{part}": tensor for part, tensor in parts.items()})
        if with_factors:
            for part in PARTS:
                tensor = getattr(stack.factors, part).detach().to("cpu", torch.float32)
                tensors[f"{FACTORS}{name}_{part}"] = tensor.contiguous().clone()
    return tensors


def verify(stacks: Mapping[str, Stack], tensors: Mapping[str, Tensor]) -> None:
    """Compares an adapter's record of its factors with the stacks' factors; takes over factors that the adapter carries.

    Raises ValueError for an adapter of other weights or ranks, or of factors that are broken or came out differently here.
    """
    for name, stack in stacks.items():
        if stack.weights_hash is None:
            continue
        parts = ("weights", "shape", "algorithm", "sketch")
        weights, shape, algorithm, sketch = (tensors.get(f"{FINGERPRINT}{name}_{part}") for part in parts)
        if weights is None or shape is None or algorithm is None or sketch is None:
            recorded = {key[len(FINGERPRINT) :].rpartition("_")[0] for key in tensors if key.startswith(FINGERPRINT)}
            raise ValueError(
                f"the CRAFT adapter does not say which factors its J of projection {name!r} belong to (it has records of "
                f"{', '.join(sorted(recorded)) or 'none'}), so it cannot be loaded safely. Save it again with save_pretrained."
            )
        _check_base(name, stack, bytes(weights.cpu().tolist()).hex(), tuple(shape.tolist()))
        stored = _read_factors(name, stack, tensors)
        if stored is not None:
            if not sketch_difference(sketch, stored.sketch().float()) <= TOLERANCE:  # it may be NaN
                raise ValueError(f"the factors of projection {name!r} that the CRAFT adapter carries are broken: copy it again")
            stack.set_factors(stored)
            continue
        trained_with = bytes(algorithm.cpu().tolist()).decode(errors="replace")
        difference = sketch_difference(sketch, stack.ready().sketch().float())
        if trained_with != ALGORITHM or not difference <= TOLERANCE:
            raise ValueError(
                f"the CRAFT adapter was trained in another basis than the factors of projection {name!r} that came out here "
                f"(sketches differ by {difference:.2g}, at most {TOLERANCE:g} is rounding; decomposed by {trained_with}, here "
                f"by {ALGORITHM}). Its J would mean something else. Where it was trained, set save_factors=True in its config "
                "and save it again: then it carries its factors."
            )


def _check_base(name: str, stack: Stack, weights: str, shape: tuple[int, ...]) -> None:
    if shape != (*stack.shape, *stack.ranks):
        raise ValueError(
            f"the CRAFT adapter's projection {name!r} has stack {shape[:3]} at ranks {shape[3:]}; here it is {stack.shape} at "
            f"{stack.ranks}: another model, or another configuration"
        )
    if weights != stack.weights_hash:
        raise ValueError(
            f"the CRAFT adapter was trained on other weights of projection {name!r}, or on the same in another dtype (SHA-256 "
            f"{weights[:12]}..., here {str(stack.weights_hash)[:12]}...). Load the base model it was trained on: same "
            f"checkpoint and revision, same dtype, not quantized differently, nothing merged into it. {_ELSEWHERE}"
        )


def _read_factors(name: str, stack: Stack, tensors: Mapping[str, Tensor]) -> TuckerFactors | None:
    parts = [tensors.get(f"{FACTORS}{name}_{part}") for part in PARTS]
    if any(part is None for part in parts):
        return None
    dtype = torch.float32 if stack.core is None else stack.core.dtype
    core, u1, u2, u3 = (part.to(stack.device, dtype) for part in parts if part is not None)
    return TuckerFactors(core, u1, u2, u3)  # only reports need the spectra, so adapters do not carry them
