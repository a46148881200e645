"""Is the answer right as often as it says, and do the seeds that it proposes decide? Simulated sweeps whose truth is known.

    python -m tests.benchmarks.answer

Each row is a kind of sweep: configurations between 1,000 and 1,000,000 parameters on one task, whose true scores scatter by
`differences` points around a curve that levels off, and scores that scatter by two points over seeds (`unequal`: by two points
times a log-normal factor of each configuration). A sweep that names a configuration as enough is right if nothing is better by
more than a point in truth. Where it proposes seeds, they are drawn and the answer is computed again: it is decided if one
configuration is enough and nothing smaller may be.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import astuple, dataclass
from functools import cache
from typing import Any

import numpy as np

from orchestrator.results.answer import Answer, find_answer
from orchestrator.results.front import mark_front
from orchestrator.results.intervals import interval
from orchestrator.results.summary import Summary
from orchestrator.state.events import SessionStarted
from orchestrator.state.state import State
from orchestrator.sweepfile.objectives import DEFAULT_OBJECTIVES

KINDS = (
    *((16, 3, differences, False) for differences in (0.3, 1.0, 2.0, 3.0)),
    *((16, 5, 2.0, False), (6, 3, 2.0, False)),
    *((16, 3, 1.0, True), (16, 3, 2.0, True), (16, 5, 2.0, True), (4, 3, 2.0, True)),
)
"""The rows of the table: configurations, seeds, differences, whether the spread is unequal."""


@dataclass(frozen=True)
class Row:
    """Shares of the sweeps: those that say enough; of these the mean chance that they say, and those that are right; those that
    propose seeds, of these the mean chance to decide that they say, and those that are decided."""

    answered: float
    said: float
    right: float
    proposed: float
    hoped: float
    decided: float


def simulate(many: int, seeds: int, differences: float, unequal: bool, sweeps: int) -> Row:
    random = np.random.default_rng(7)
    right, decided = list[tuple[float, bool]](), list[tuple[float, bool]]()
    for _ in range(sweeps):
        size, true = truth_of(random, many, differences)
        noise = 2 * (np.exp(random.normal(0, 0.5, many)) if unequal else np.ones(many))
        seen = true + random.normal(0, 1, (seeds + 5, many)) * noise
        answer = _answer(seen[:seeds], size)
        if answer.kind == "enough" and answer.better is not None:
            right.append((1 - answer.better, true[int(answer.configuration[1:])] >= true.max() - 1))
        if answer.decides is not None and "more seed" in answer.proposal:
            count = ("One", "Two", "Three", "Four", "Five").index(answer.proposal.partition(" ")[0]) + 1
            later = _answer(seen[: seeds + count], size)
            decided.append((answer.decides, later.kind == "enough" and not later.unknown.startswith("Not known")))
    parts = []
    for pairs in (right, decided):
        said, came = np.array(pairs, dtype=float).mean(axis=0) if pairs else (math.nan, math.nan)
        parts += [len(pairs) / sweeps, float(said), float(came)]
    return Row(*parts)


def _answer(scores: Any, size: Any) -> Answer:
    summaries = [summary(f"c{place}", scores[:, place], size[place]) for place in range(len(size))]
    answer = find_answer(mark_front(summaries, DEFAULT_OBJECTIVES), _state(len(scores)))
    assert answer is not None
    return answer


@cache
def _state(seeds: int) -> State:
    """Returns the state of a sweep with so many seeds."""
    file = {"name": "s", "model": "m", "tasks": ["task"], "seeds": list(range(seeds)), "space": [{"method": "lora"}]}
    return State().after(SessionStarted(sweep=file, configurations=1, trainings=1))


def summary(name: str, scores: Any, size: float) -> Summary:
    by_seed = {("task", seed): float(score) for seed, score in enumerate(scores)}
    value, many = interval(by_seed.values()), len(scores)
    counts = {"trainable_parameters": float(size), "seconds": 60.0}
    return Summary(name, name, "lora", {}, {"score": value}, {"task": value}, counts, by_seed, many, many, 0, 0, many)


def truth_of(random: np.random.Generator, many: int, differences: float) -> tuple[Any, Any]:
    """Returns sizes in ascending order, and true scores around a curve that levels off."""
    size = np.exp(np.sort(random.uniform(math.log(1e3), math.log(1e6), many))).round()
    along = np.log(size / 1e3) / math.log(1e3)
    return size, 60 + 4 * differences * (1 - np.exp(-2 * along)) + random.normal(0, differences, many)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=300, help="simulated sweeps a row (300)")
    sweeps = parser.parse_args().sweeps
    heads = "configurations | seeds | differences | spread | says enough | said | right | proposes seeds | said | decided"
    print(f"| {heads} |\n{'| --- ' * 10}|")
    for many, seeds, differences, unequal in KINDS:
        row = simulate(many, seeds, differences, unequal, sweeps)
        cells = [str(many), str(seeds), f"{differences:g}", "unequal" if unequal else "equal"]
        print("| " + " | ".join(cells + [f"{100 * share:.0f} %" for share in astuple(row)]) + " |", flush=True)


if __name__ == "__main__":
    main()
