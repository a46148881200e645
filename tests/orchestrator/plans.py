"""Sweeps of a few lines, and their plans without a model: the test says how many parameters a run trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.sweep import Sweep

CONFIG = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100}
CONFIG |= {"num_attention_heads": 2, "intermediate_size": 64}
HEAD = {"name": "name: t\n", "model": "model: m\n", "tasks": "tasks: [toy/paraphrase]\n"}
Size = int | Callable[[RunSpec], int]


def config_alone(folder: Path) -> str:
    """Makes the folder of a BERT of two layers of width 32 without weights, which is enough to plan; returns its path."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def toy_sweep(folder: Path, text: str, *overrides: str) -> Sweep:
    """Writes a file with this text and loads it; the sections of HEAD need not be in it."""
    keys = {line.partition(":")[0] for line in text.splitlines()}
    file = folder / "sweep.yaml"
    file.write_text("".join(line for key, line in HEAD.items() if key not in keys) + text)
    return load_sweep(file, overrides)


def count(sweep: Sweep, size: Size = 10, memory: Callable[[RunSpec], int] = lambda run: 1000) -> Plan:
    """Makes the plan of a sweep whose runs train `size` parameters and need `memory` bytes."""

    def counts(run: RunSpec) -> Counts:
        trained = size if isinstance(size, int) else size(run)
        return Counts(trained, 2, 10_000, 4 * trained)

    return make_plan(sweep, Planner(sweep, counts, memory))


def toy_plan(folder: Path, text: str, size: Size = 10) -> Plan:
    return count(toy_sweep(folder, text), size)


def rank(run: RunSpec) -> int:
    """100 parameters a rank."""
    return 100 * int(run.parameters["rank"])
