"""Keys stay what they are: `keys.json` has a digest of those of each shipped sweep, and of the shapes that these lack.

A key that changes makes finished trials strangers to their sweep. `UPDATE_GOLDEN=1 pytest` writes the file: a change of one
shipped sweep changes its line, and a change of how keys are made all lines of what it touches.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.plan.plan import make_plan
from orchestrator.plan.planner import Planner
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.sweep import Sweep
from tests.golden import check_golden

ROOT = Path(__file__).parents[3]
SHAPES = """\
name: shapes
model: some/model
revision: main
tasks: [toy, glue/rte]
seeds: [0, 7]
protocol: customary
training: {epochs: 2, learning_rate: 1e-3}
task_training: {toy: {batch_size: 8}, glue/rte: {learning_rate: 2e-3}}
warm_start: {glue/rte: toy/paraphrase}
measure: {forgetting: true}
space:
  - {method: craft, ranks: {values: [[all, 8, 8], [2, 16, 8]]}, sizes: 2, learning_rate: {values: [1e-3, 3e-3]}}
  - {method: lora, r: {values: [1, 4]}, sizes: [40, 150], task_training: {toy: {epochs: 1}}, warm_start: false}
  - {method: peft, peft_type: LOHA, config: {r: {values: [2, 4]}}}
  - {method: bitfit, resources: {cpu: 2}}
  - {method: head}
"""
FAIR = """\
name: fair
model: some/model
tasks: [toy/sentiment, toy/paraphrase]
seeds: [0, 1]
compare: fair
space:
  - {method: lora, rank: {values: [1, 2, 4]}, sizes: 2}
  - {method: craft, ranks: {values: [[all, 8, 8], [all, 16, 16]]}}
  - {method: bitfit, tuned: false}
"""


def counts(run: RunSpec) -> Counts:
    """Counts without a model: a hundred parameters for each rank."""
    ranks = run.parameters.get("ranks") or [run.parameters.get("rank", 3)]
    size = 100 * sum(int(rank) for rank in ranks if rank != "all")
    return Counts(size, 10, 10**6, 4 * size)


def portable(sweep: Sweep) -> Sweep:
    """Returns the sweep with paths below the project's folder: the paths of own files are part of a key."""
    return Sweep.model_validate_json(sweep.model_dump_json().replace(f"{ROOT}/", ""))


def digest(sweep: Sweep) -> str:
    """How many trials its configurations have, and a digest of their ids and keys."""
    planner = Planner(sweep, counts)
    plan = make_plan(sweep, planner)
    tuned = [
        configuration
        for family in (plan.families if sweep.tunes else ())
        for group in family.groups
        if len(group) > 1
        for configuration in planner.tuned(group, dict.fromkeys(sweep.task_names, 1), {}, {})
    ]
    seeds = dict.fromkeys([*sweep.seeds, *sweep.reported_seeds])
    every = [*plan.configurations, *plan.probed[:4], *tuned]
    keys = {f"{configuration.id} {trial.key}" for configuration in every for trial in planner.trials([configuration], seeds)}
    assert keys
    return f"{len(keys)} keys, {hashlib.sha256(' '.join(sorted(keys)).encode()).hexdigest()[:16]}"


def test_no_key_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    files = sorted((ROOT / "sweeps").rglob("*.yaml"))
    digests = {str(file.relative_to(ROOT)): digest(portable(load_sweep(file, ["seeds=[0]"]))) for file in files}
    for name, text in {"shapes": SHAPES, "fair": FAIR}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
        digests[name] = digest(load_sweep(tmp_path / f"{name}.yaml"))
    check_golden("keys.json", json.dumps(digests, indent=1))
