"""How long a plan takes, by what recorded trials of the same model have taken: `--plan` says so where there are some.

Where there are none, it says so and does not try: steps to time need the weights, the data and the decompositions, which takes
longer than all else that `--plan` does, and the machine that plans may be no machine to train on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import yaml

from craft.words import format_duration
from orchestrator.plan.plan import Plan
from orchestrator.record.folder import SweepFolder
from orchestrator.record.manifest import cores
from orchestrator.state.entry import TrialResult
from orchestrator.state.log import read_state
from orchestrator.sweepfile.sweep import Sweep

_ALIKE = ("batch_size", "gradient_accumulation", "max_length", "precision")
"""Settings on which the time of a step depends most."""


def time_line(plan: Plan, steps: int) -> str:
    """Returns a sentence on the time of so many optimizer steps on this machine; empty for GPUs and if the steps are not known.

    The seconds of recorded trials hold their scoring, so a plan with other evaluations takes another time: it is an estimate.
    """
    sweep, storage = plan.sweep, Path(plan.sweep.storage)
    at_once = min(math.floor(cores() / sweep.resources.cpu), len(plan.jobs))
    if not steps or not at_once or sweep.resources.gpu:
        return ""
    ended = [result for folder in sorted(storage.glob("*/")) for result in _results(folder, sweep)]
    trained = [result for result in ended if result.status == "finished" and result.steps]
    if not trained:
        return f"how long: not known before a trial of this model and batch is recorded in {storage}; a running sweep shows it"
    a_step = sum(result.seconds for result in trained) / sum(result.steps for result in trained)
    seconds = format_duration(60 * max(1, round(steps * a_step / at_once / 60)))
    return f"about {seconds.removesuffix(' 00 s')} with {at_once} at once, by the {len(trained)} trials recorded in {storage}"


def _results(folder: Path, sweep: Sweep) -> Iterable[TrialResult]:
    """Returns the results of the trials in `folder` if it is a sweep of the same model with comparable steps."""
    mine = sweep.training.model_dump()
    with suppress(OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError):  # no sweep, or a damaged one
        settings = yaml.safe_load(SweepFolder(folder).effective.read_text(encoding="utf-8"))
        if settings["model"] == sweep.model and all(settings["training"].get(name) == mine[name] for name in _ALIKE):
            entries = read_state(SweepFolder(folder).record).entries.values()
            return [entry.result for entry in entries if entry.result is not None]
    return ()
