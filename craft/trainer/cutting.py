"""Cuts a finished adapter to fewer parameters by SVD: `cut_adapter`.

What is cut is in the method's row (`craft.methods.cutting`). A `Cut` names one rank for every product, or a number of
parameters; then there is one threshold over all singular values (`craft.factors.low_rank`).

The result is an adapter as training leaves one. Its record says of which run it is cut (`RunSpec.cut_from`). It holds no
scores until it is trained on (`craft.trainer.recovery`) and scored (`craft.trainer.rescoring`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from craft.factors.low_rank import ranks_within
from craft.methods import find_cutting
from craft.models.adapters import CONFIG_FILE, WEIGHTS_FILE
from craft.scoring.forgetting import BEFORE
from craft.spec import BUDGET, RunSpec
from craft.trainer.adapter_folder import read_record, write_record
from craft.trainer.checkpoint import MANIFEST_FILE, write_folder

_NOT_ITS_OWN = ("optimizer_bytes", "peak_memory_bytes", "step_seconds", "tokens_per_second")


@dataclass(frozen=True)
class Cut:
    """What to cut an adapter to: one `rank` for every product, or a number of `parameters` in all; and the share of its run's
    steps for which it is trained afterwards."""

    rank: int | None = None
    parameters: int | None = None
    recovery: float = 0.0

    @classmethod
    def read(cls, text: str, method: str, recovery: float = 0.0) -> Cut:
        """Reads `8` or `parameters:20000`."""
        find_cutting(method)
        number = text.replace(" ", "").replace("_", "").removeprefix(BUDGET)
        if not (number.isascii() and number.isdigit() and int(number) > 0):
            raise ValueError(f"an adapter of {method} is cut to a rank, such as 4, or {BUDGET}20000; got {text!r}")
        budget = text.strip().startswith(BUDGET)
        return cls(None if budget else int(number), int(number) if budget else None, recovery)

    def __str__(self) -> str:
        return str(self.rank) if self.rank is not None else f"{BUDGET}{self.parameters}"


def cut_adapter(folder: Path, cut: Cut, to: Path, spec: RunSpec | None = None) -> RunSpec:
    """Writes the adapter in `folder`, cut, to `to`.

    Args:
        spec: the run that trained the adapter, if its model and data are not where they were.

    Returns:
        The run in the new adapter's record.

    Raises:
        ValueError: the adapter is smaller than that, is itself a cut one, or one direction already takes more.
    """
    record = read_record(folder)
    trained = RunSpec.model_validate(record["spec"])
    spec = spec.model_copy(update={"training": trained.training}) if spec else trained  # it may have needed smaller batches
    if spec.cut_from is not None:
        raise ValueError(
            f"{folder} holds an adapter that was cut from run {spec.cut_from.run}; cut the one that was trained, or its "
            "leading directions are those of the first cut"
        )
    counts = {name: value for name, value in record["counts"].items() if name not in _NOT_ITS_OWN}
    parameters = counts["trainable_parameters"]
    tensors, config = load_file(folder / WEIGHTS_FILE), json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    bytes_before = _bytes(tensors)
    smaller, counts["trainable_parameters"] = find_cutting(spec.method).cut(
        tensors, config, lambda values, costs: _ranks(cut, values, costs, parameters)
    )
    counts["total_parameters"] += counts["trainable_parameters"] - parameters
    counts["adapter_bytes"] += _bytes(tensors) - bytes_before
    run = spec.cut_to(str(cut), cut.recovery)
    metrics = {name: value for name, value in record["metrics"].items() if name == BEFORE}
    record |= {"spec": run.model_dump(mode="json"), "counts": counts, "metrics": metrics, "notes": []}

    def fill(aside: Path) -> None:
        shutil.copytree(
            folder, aside, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST_FILE, WEIGHTS_FILE, "README.md")
        )
        save_file(tensors, aside / WEIGHTS_FILE, metadata={"format": "pt"})
        if smaller is not config:
            (aside / CONFIG_FILE).write_text(json.dumps(smaller, indent=2, sort_keys=True), encoding="utf-8")
        write_record(aside, record)

    write_folder(to, fill)
    return run


def _ranks(cut: Cut, values: Mapping[str, Tensor], costs: Mapping[str, int], limit: int) -> dict[str, int]:
    """Returns the rank of every product, from its singular values and the parameters of one direction.

    Args:
        limit: the parameters of the adapter.
    """
    most = max(map(len, values.values()))
    if cut.rank is not None:
        if cut.rank >= most:
            advice = f"Give a rank from 1 to {most - 1}" if most > 1 else "No rank is lower: keep the adapter as it is"
            raise ValueError(f"the rank is {cut.rank}, but from rank {most} on nothing is cut. {advice}")
        return dict.fromkeys(values, cut.rank)
    assert cut.parameters is not None
    if cut.parameters >= limit:
        raise ValueError(f"{cut.parameters:,} parameters: the adapter was trained with {limit:,}; give fewer")
    ranks = ranks_within(values, costs, cut.parameters)
    if not any(ranks.values()):
        raise ValueError(
            f"{cut.parameters:,} parameters are too few for one direction; the first takes up to {max(costs.values()):,}"
        )
    return ranks


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
