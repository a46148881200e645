"""Configurations and trials of one's own making, for the tests of what is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.plan.trial import Status, Trial, TrialResult, Why
from orchestrator.record.state import Entry
from orchestrator.results.intervals import interval, sampling_reach
from orchestrator.results.summary import Summary

Scores = Mapping[tuple[str, int], float]


def made(
    name: str, size: float, scores: Scores | Iterable[float], method: str = "lora", examples: int = 0, chance: float = 0.0,
    **parameters: Any,
) -> Summary:  # fmt: skip
    """A complete configuration with these scores by task and seed, or by seed, on so many scored examples."""
    by_key = dict(scores) if isinstance(scores, Mapping) else {("toy/sentiment", seed): one for seed, one in enumerate(scores)}
    value = interval(by_key.values())
    counts = {"trainable_parameters": size, "seconds": 30.0}
    counts |= {"examples": float(examples), "random_guessing": chance} if chance else {}
    many, tasks = len(by_key), {task: value for task, _ in by_key}
    return Summary(name, name, method, parameters, {"score": value, "search_score": value}, tasks, counts, by_key, many, many,
                   0, 0, many, sampling=sampling_reach({"score": value.mean}, examples))  # fmt: skip


def entry(
    configuration: str, metrics: Mapping[str, float] | None, *, task: str = "toy", seed: int = 0, method: str = "lora",
    counts: Mapping[str, float] | None = None, facts: Mapping[str, Any] | None = None, status: Status = "finished",
    why: Why | None = None, wave: int = 1, **parameters: Any,
) -> Entry:  # fmt: skip
    """A trial that has ended with these metrics; without any it failed."""
    key = f"{configuration} {task} {seed}"
    status = "failed" if metrics is None else status
    result = TrialResult(key, status, dict(metrics or {}), dict(counts or {}), facts=dict(facts or {}))
    trial = Trial(key, configuration, configuration, method, task, seed, "honest", parameters, why or Why())
    return Entry(trial, result, "ended", wave=wave)
