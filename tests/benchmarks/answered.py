"""How much training does a sweep need that adds seeds until it is answered, and how often is it right?

    python -m tests.benchmarks.answered --sweeps 40 --worlds "three tasks"

The sweeps are those of `tests.benchmarks.answer`, whose truth is known. An answer is right if nothing is better by more than a
point in truth. `until` takes those steps of `orchestrator.search.stages` that add seeds, from one seed on.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence

import numpy as np

from orchestrator.plan.plan import MOST_SEEDS
from orchestrator.results.front import SEEDS, enough_of, mark_front
from orchestrator.results.metrics import P_ENOUGH
from orchestrator.results.step import best as best_step
from orchestrator.results.step import steps
from orchestrator.results.summary import Summary
from orchestrator.search.stages import contenders
from orchestrator.sweepfile.settings import DEFAULT_OBJECTIVES, Enough
from orchestrator.sweepfile.sweep import Sweep
from tests.benchmarks.answer import Simulation, rescored

RULE, SWEEP = Enough(), Sweep.model_construct(objectives=DEFAULT_OBJECTIVES, enough=Enough())
Seeds = Mapping[str, int]


def judged(full: Sequence[Summary], seeds: Seeds) -> list[Summary]:
    """Returns the configurations after so many seeds of each training."""
    rows = []
    for summary in full:
        scores = {key: score for key, score in summary.scores.items() if key[1] < seeds[summary.trained]}
        examples = summary.value("examples") * len(summary.tasks)
        rows.append(rescored(summary, scores, examples, on_front=False, may_be_on_front=False, enough=False))
    return mark_front(rows, DEFAULT_OBJECTIVES, RULE)


def until(full: Sequence[Summary]) -> Seeds:
    """Returns the seeds of each training when the sweep ends."""
    seeds = dict.fromkeys((summary.trained for summary in full), 1)
    seeds |= {row.trained: 2 for row in contenders(judged(full, seeds), RULE)}
    while True:
        complete = judged(full, seeds)
        chance, name = {row.configuration: row.counts[P_ENOUGH] for row in complete}, enough_of(complete, RULE)
        possible, _, _ = steps(complete, SWEEP, lambda step: False)
        few = [step for step in possible if max(seeds[name] for name in step.configurations) + step.seeds <= MOST_SEEDS]
        step = best_step(few)
        if step is None:
            few = {row.trained for row in complete if chance[row.configuration] > 1 - RULE.sure}
            few = {key for key in few if seeds[key] < SEEDS and name is None}
            if not few:
                return seeds
            seeds |= {key: seeds[key] + 1 for key in few}
            continue
        seeds |= {name: seeds[name] + step.seeds for name in step.configurations}


def outcome(full: Sequence[Summary], truths: Mapping[str, float], seeds: Seeds) -> tuple[float, bool, float, bool]:
    """Returns the seconds of training, whether a configuration is called enough, with what chance, and whether that is true."""
    complete = judged(full, seeds)
    name = enough_of(complete, RULE)
    rows = {row.trained: row for row in full if row.source is None}
    seconds = sum(rows[key].value("seconds") * len(rows[key].tasks) * many for key, many in seeds.items() if key in rows)
    said = next((row.counts[P_ENOUGH] for row in complete if row.configuration == name), math.nan)
    return seconds, name is not None, said, name is not None and truths[name] >= max(truths.values()) - RULE.within


def table(sweeps: Sequence[tuple[list[Summary], dict[str, float]]], title: str) -> None:
    for policy in ("three seeds", "five seeds", "until"):
        rows = []
        for full, truths in sweeps:
            names = [row.trained for row in full]
            fixed = dict.fromkeys(names, 3 if policy == "three seeds" else 5)
            seeds = until(full) if policy == "until" else fixed
            rows.append(outcome(full, truths, seeds))
        seconds, answered, said, right = np.array(rows, dtype=float).T
        print(f"| {title} | {policy} | {seconds.mean() / 60:.0f} | {answered.mean():.0%} | {np.nanmean(said):.0%} | "
              f"{right.sum() / max(answered.sum(), 1):.0%} | {right.mean():.0%} |", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=40, help="sweeps of each world (40)")
    parser.add_argument("--worlds", nargs="*", default=["equal", "unequal", "cuts", "three tasks"])
    options, random = parser.parse_args(), np.random.default_rng(5)
    print(f"| sweeps | seeds | minutes | answered | said | right of answered | right of all |\n{'| --- ' * 7}|")
    for world in options.worlds:
        made = [Simulation(world, random) for _ in range(options.sweeps)]
        table([([*sweep.summaries.values()], sweep.truths) for sweep in made], world)


if __name__ == "__main__":
    main()
