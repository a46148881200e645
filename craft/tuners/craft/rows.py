"""Batches whose rows have adapters of their own: PEFT's `adapter_names=[...]` of a forward or generate call.

::

    adapter_names ["a", "__base__", "b"]     every CraftLinear: rows 0 and 2 with their adapters' change, row 1 without any
                                             every module of modules_to_save: each row in its adapter's copy, by PEFT

The first sentences of the errors are those of PEFT's LoRA.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from peft.tuners.tuners_utils import BaseTuner
from peft.utils import AuxiliaryTrainingWrapper
from torch import nn

from craft.tuners.craft.layer import CraftLinear, Rows


@contextmanager
def adapters_by_row(tuner: BaseTuner, adapters: Sequence[str], names: Sequence[str], beams: int) -> Iterator[None]:
    """Gives each row of a batch the adapter in `names`, inside the block.

    Args:
        adapters: those that the tuner has.
        names: an adapter, or "__base__" for none, for each row.
        beams: how many rows generation makes of each, after an encoder has run.
    """
    if tuner.training:
        raise ValueError("Cannot pass `adapter_names` when the model is in training mode. Call eval() first.")
    unknown = sorted(set(names) - set(adapters) - {"__base__"})
    if unknown:
        raise ValueError(
            f"Trying to infer with non-existing adapter(s): {', '.join(unknown)}; there are {', '.join(sorted(adapters))}, and "
            "'__base__' for none"
        )
    layers = [module for module in tuner.model.modules() if isinstance(module, CraftLinear)]
    if any(layer.merged for layer in layers):
        raise ValueError("Cannot pass `adapter_names` when there are merged adapters, please call `unmerge_adapter` first.")
    unrepeated = _encoder_modules(tuner.model) if beams > 1 else set()
    by_beam = [name for name in names for _ in range(beams)]
    device = next(tuner.model.parameters()).device
    rows, rows_by_beam = Rows.of(list(names), device), Rows.of(by_beam, device)
    handles = []
    try:
        for module in tuner.model.modules():
            if isinstance(module, CraftLinear):
                module.craft_rows = rows if module in unrepeated else rows_by_beam
            elif isinstance(module, AuxiliaryTrainingWrapper):
                hook = partial(_with_names, list(names) if module in unrepeated else by_beam)
                handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        yield
    finally:
        for layer in layers:
            layer.craft_rows = None
        for handle in handles:
            handle.remove()


def _with_names(names: list[str], _module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return args, {**kwargs, "adapter_names": names}


def _encoder_modules(model: Any) -> set[nn.Module]:
    encoder = model.get_encoder() if hasattr(model, "get_encoder") else None
    # Without an encoder transformers gives the model itself.
    return set(encoder.modules()) if encoder is not None and encoder is not model else set()
