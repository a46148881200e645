"""A trial that scores says so through Ray: driver, display and tracking store hear how far it is. Ray and training are real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.driver import driver
from orchestrator.driver.display import Display
from orchestrator.plan.plan import make_plan
from orchestrator.plan.trial import Train
from orchestrator.record.events import Reported, Underway
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_events
from orchestrator.sweepfile.load import load_sweep

pytestmark = pytest.mark.slow

REPORTED, SEARCH, BATCH = 48, 16, 8


def telling_all() -> Train:
    """`train_run` that reports every batch and not every few seconds; workers get it by value."""

    def train(spec, directory, *, report, resume_from, on_step):
        from craft.trainer import pace
        from craft.trainer.training import train_run

        pace.REPORT_EVERY = 0.0
        return train_run(spec, directory, report=report, resume_from=resume_from, on_step=on_step)

    return train


def test_what_a_trial_scores_reaches_the_driver_while_it_scores(
    tmp_path: Path, tiny_bert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.orchestrator.tune.running import run_sweep

    heard: list[dict[str, Any]] = []
    look = Display.look

    def listened(self: Display, key: str, outlook: dict[str, Any]) -> None:
        heard.append(outlook)
        look(self, key, outlook)

    monkeypatch.setattr(Display, "look", listened)
    monkeypatch.setattr(driver, "UNDERWAY_EVERY", 0.0)
    file = tmp_path / "sweep.yaml"
    file.write_text(
        f"name: test\nmodel: {tiny_bert}\ntasks: [toy/sentiment]\nseeds: [0]\nresources: {{cpu: 1}}\n"
        f"training: {{max_steps: 4, batch_size: 8, train_examples: 32, eval_examples: {REPORTED}, search_examples: {SEARCH}, "
        f"eval_batch_size: {BATCH}, max_length: 32}}\nspace: [{{method: lora, rank: 2}}]\n"
    )
    outcome = run_sweep(make_plan(load_sweep(file)), tmp_path / "test", cpus=1, verbosity="quiet", train=telling_all())
    assert len(outcome.ended("finished")) == 1
    events = [event for event, _ in read_events(SweepFolder(tmp_path / "test").record)]
    assert sum(isinstance(event, Reported) for event in events) == 1, "words on progress are no evaluations"
    scored = [one for one in heard if one["phase"].startswith("scoring")]
    wanted = [f"scoring {done}/{SEARCH} (search)" for done in range(BATCH, SEARCH + 1, BATCH)]
    wanted += [f"scoring {done}/{REPORTED} (reported)" for done in range(BATCH, REPORTED + 1, BATCH)]
    assert [report["phase"] for report in scored] == wanted
    shares, lefts = [report["share"] for report in scored[2:]], [report["seconds_left"] for report in scored[2:]]
    assert shares[0] < shares[-1]
    assert shares[-1] == pytest.approx(1.0)
    assert lefts[0] > 0
    assert lefts[-1] == pytest.approx(0.0, abs=1e-6)
    assert any(event.doing for event in events if isinstance(event, Underway)), "the record has it too"
