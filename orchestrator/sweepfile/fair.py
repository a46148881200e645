"""`compare: fair` of a sweep file: every configuration is tuned with an equal budget before it is compared.

    compare: fair        seeds: [0, 1, 2]        tuned: [learning_rate]        tuning_seeds: [1000]

stands for what could be written by hand, and `written_out` writes it so before the file is checked:

    seeds: [1000]    replication: {seeds: [0, 1, 2], choose: best, tuned: [learning_rate]}

and values of what is tuned in each block.

Each block searches its own values of a tuned setting, those under `tuned`, or the learning rates in its method's row. A block
with `tuned: false` keeps its settings as they are, and is marked as not tuned. `checks.fair` holds what makes it fair.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from craft.methods import METHODS
from craft.plain_yaml import YamlPath
from orchestrator.sweepfile.mistakes import shown
from orchestrator.sweepfile.space.blocks import parameter_names

FAIR = "fair"
RATE = "learning_rate"
TUNING_SEED = 1000
"""The seed that tunes unless the file says which. It lies far from the first numbers, so that seeds can be added later."""


def tuned_settings(given: Any) -> dict[str, dict[str, Any]]:
    """`tuned` of a sweep file as a mapping: a list of names is a mapping without values."""
    if isinstance(given, list | tuple) and given and all(isinstance(name, str) for name in given):
        return {name: {} for name in given}
    if not isinstance(given, dict) or not given or not all(isinstance(name, str) for name in given):
        raise ValueError(
            f"got {shown(given)}; the settings to tune, as in [learning_rate] or {{learning_rate: {{values: [1e-3, 1e-2]}}}}"
        )
    for name, how in given.items():
        values = how.get("values", []) if isinstance(how, dict) else None
        if not isinstance(values, list) or set(how) - {"values"} or how == {"values": []}:
            raise ValueError(f"got {shown(how)} for {name}; its values, as in {{values: [1e-3, 1e-2]}}")
    return given


def written_out(content: dict[str, Any]) -> tuple[dict[str, Any], dict[YamlPath, YamlPath]]:
    """A file's content with what `compare: fair` stands for in its place; what is written by hand stays.

    Returns:
        The content, and by each path that is new the path that it comes from.
    """
    if content.get("compare") != FAIR:
        return content, {}
    try:
        tuned = tuned_settings(content["tuned"]) if content.get("tuned") is not None else {RATE: {}}
    except ValueError:
        return content, {}  # pydantic says so
    new: dict[YamlPath, YamlPath] = {}
    seeds, space = content.get("seeds", [0]), content.get("space")
    if content.get("replication") is None and isinstance(seeds, list) and seeds:
        tuning = content.get("tuning_seeds") or [next(seed for seed in itertools.count(TUNING_SEED) if seed not in seeds)]
        rule: dict[str, Any] = {"seeds": seeds, "choose": "best", "tuned": [*tuned]}
        content = content | {"seeds": tuning, "replication": rule, "tuning_seeds": None}
        new |= {("seeds",): ("tuning_seeds",), ("replication",): ("seeds",), ("replication", "seeds"): ("seeds",)}
        new |= {("replication", "tuned", index): ("tuned",) for index in range(len(tuned))}
    if isinstance(space, list):
        blocks = [_with_values(block, tuned) for block in space]
        content = content | {"space": blocks}
        for index, (block, before) in enumerate(zip(blocks, space, strict=True)):
            if block is not before:
                added = [name for name in block if name not in before]
                new |= {("space", index, name): ("tuned", name) for name in added if tuned.get(name, {}).get("values")}
    return content, new


def _with_values(block: Any, tuned: Mapping[str, Mapping[str, Any]]) -> Any:
    """The block with values of each tuned setting that its method has and that it does not give itself."""
    if not isinstance(block, dict) or block.get("tuned") is False or str(block.get("method")) not in METHODS:
        return block
    if block["method"] == "head" and [*tuned] == [RATE] and RATE not in block:
        return {"tuned": False, **block}  # it has no adapter, and its head has a rate of its own
    row = METHODS[block["method"]]
    names = parameter_names(row)
    given = {names.get(key) for key in block}
    added = {}
    for name, how in tuned.items():
        values = how.get("values") or ([*row.rates] if name == RATE else None)
        if name in names.values() and name not in given and values:
            added[name] = {"values": values}
    return block | added if added else block
