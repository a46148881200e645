"""Real training under real Ray: trials have their shares and the numbers that they have alone, and report how far they are."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from craft.results import Train
from craft.trainer.training import train_run
from orchestrator.driver import driver
from orchestrator.driver.display import Display
from orchestrator.plan.plan import make_plan
from orchestrator.record.events import Reported, Underway
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_events
from orchestrator.sweepfile.load import load_sweep
from tests.orchestrator.stand_in import run_sweep

pytestmark = pytest.mark.slow

REPORTED, SEARCH, BATCH = 48, 16, 8
SWEEP = f"""\
name: test
model: MODEL
tasks: [toy/sentiment]
resources: {{cpu: 1}}
training: {{max_steps: 4, batch_size: 8, train_examples: 32, eval_examples: {REPORTED}, search_examples: {SEARCH},
           eval_batch_size: {BATCH}, max_length: 32}}
space: [{{method: craft, ranks: [all, 8, 8]}}, {{method: lora, rank: 2, resources: {{cpu: 2, memory: 2 GiB}}}}]
"""


def telling_all(log: str) -> Train:
    """`train_run` that reports every batch, and writes down what its process was given; workers get it by value."""

    def train(spec, directory, *, report, resume_from, on_step):
        import resource
        from pathlib import Path

        import ray
        import torch

        from craft.trainer import pace
        from craft.trainer.training import train_run

        given = ray.get_runtime_context().get_assigned_resources()
        limited = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
        with Path(log).open("a") as file:
            file.write(f"{spec.method} {given['CPU']:g} {torch.get_num_threads()} {limited}\n")
        pace.REPORT_EVERY = 0.0
        return train_run(spec, directory, report=report, resume_from=resume_from, on_step=on_step)

    return train


def test_trials_train_as_alone_each_in_its_share_and_report_each_batch_that_they_score(
    tmp_path: Path, tiny_bert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = defaultdict[str, list[dict[str, Any]]](list)
    look = Display.look

    def listened(self: Display, key: str, outlook: dict[str, Any]) -> None:
        received[key].append(outlook)
        look(self, key, outlook)

    monkeypatch.setattr(Display, "look", listened)
    monkeypatch.setattr(driver, "UNDERWAY_EVERY", 0.0)
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("MODEL", tiny_bert))
    plan, log = make_plan(load_sweep(tmp_path / "sweep.yaml")), tmp_path / "log"
    outcome = run_sweep(plan, tmp_path / "test", cpus=2, quiet=True, train=telling_all(str(log)))
    assert len(outcome.ended("finished")) == 2, outcome.state.entries
    assert sorted(log.read_text().splitlines()) == ["craft 1 1 False", "lora 2 2 True"]

    threads = torch.get_num_threads()
    for trial in plan.trials:
        torch.set_num_threads(int(trial.resources.cpu))  # as the trial had: sums in another order round differently
        alone = train_run(trial.run, tmp_path / trial.key)
        torch.set_num_threads(threads)
        result = outcome.state.entries[trial.key].result
        assert result.metrics == alone.metrics
        assert result.counts["trainable_parameters"] == trial.planned["trainable_parameters"]
        for stored in Path(result.facts["adapter"]).glob("*.safetensors"):
            assert stored.read_bytes() == (alone.adapter / stored.name).read_bytes()

    events = [event for event, _ in read_events(SweepFolder(tmp_path / "test").record)]
    assert sum(isinstance(event, Reported) for event in events) == 2, "words on progress are no evaluations"
    assert any(event.doing for event in events if isinstance(event, Underway)), "the record has it too"
    wanted = {f"scoring {done}/{SEARCH} (search)" for done in range(BATCH, SEARCH + 1, BATCH)}
    wanted |= {f"scoring {done}/{REPORTED} (reported)" for done in range(BATCH, REPORTED + 1, BATCH)}
    for outlooks in received.values():
        scored = [outlook for outlook in outlooks if outlook["phase"].startswith("scoring")]
        assert {outlook["phase"] for outlook in scored} == wanted
        assert scored[-1]["share"] == pytest.approx(1.0)
