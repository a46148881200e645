"""A run's parameters as flat rows of text: how the tracking store, the tables and the run names show them.

`ranks: [all, 64, 64]` becomes `ranks = all,64,64` with `r1`, `r2`, `r3` beside it, numbers are written as a person writes them
(`3e-4`), and a name never depends on where in the sweep file the value stood.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from craft.methods import shown_method
from craft.spec import RunSpec


def flat_parameters(run: RunSpec) -> dict[str, Any]:
    """Returns everything that decides `run`, flat: method parameters and training settings under their own names, without unset
    ones.

    Where a method has a parameter of the same name as a training setting, the method's is the one called by the plain name
    and the setting is `training.NAME`. Values are str, int, float or bool.
    """
    flat: dict[str, Any] = {
        "method": shown_method(run.method, run.parameters),
        "model": run.model,
        "task": run.task,
        "seed": run.seed,
    }
    if run.revision:
        flat["revision"] = run.revision
    flat["protocol"] = run.protocol
    if run.task == "commonsense":
        flat.update(flatten(run.data.generation.model_dump(mode="json"), "generation."))
    if run.warm_start is not None:
        flat["warm_start"] = run.warm_start.run
    if run.cut_from is not None:
        flat["cut_from"], flat["cut_to"] = run.cut_from.run, run.cut_from.to
    flat.update(flatten(run.parameters))
    for name, value in flatten(run.training.model_dump(mode="json")).items():
        flat[name if name not in flat else f"training.{name}"] = value
    return flat


def flatten(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns mappings inside others by dotted names, lists as `a,b`, lists of lists as `a,b; c,d`, None left out;
    `ranks` of three also as r1, r2, r3."""
    flat: dict[str, Any] = {}
    for name, value in parameters.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        elif isinstance(value, list | tuple):
            between = "; " if any(isinstance(item, list | tuple) for item in value) else ","
            flat[f"{prefix}{name}"] = between.join(text(item) for item in value)
            if name == "ranks" and len(value) == 3:
                flat.update({f"{prefix}r{mode}": rank for mode, rank in enumerate(value, start=1)})
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def text(value: Any) -> str:
    """Returns a value as people write it: 0.0003 is 3e-4, 1e-3 is 0.001, True is true."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if value != 0 and abs(value) < 1e-3:
            digits, power = f"{value:.6e}".split("e")
            return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
        return f"{value:.10g}"
    if isinstance(value, list | tuple):
        return ",".join(text(item) for item in value)
    return str(value)
