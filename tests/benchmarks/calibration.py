"""Is P(enough) right? Both generators of sweeps and all records.

    python -m tests.benchmarks.calibration

The generators are `tests.benchmarks.answer` and `tests.benchmarks.plateaus`. Of a record the truths are drawn again as its
seeds leave them: the mean of a configuration with the error of that mean. Three or five new seeds are drawn around them. An
adapter and its cuts share what each seed of the record did to them, and the luck of the choice of settings.

An answer is the smallest configuration with a probability of at least 0.9 (`orchestrator.results.front.enough_of`), right if
none is better by more than a point in truth. `P(enough)` is over configurations for which it is 0.2 to 0.8; `log loss` over
all.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from orchestrator.results.front import enough_of, mark_front
from orchestrator.results.intervals import by_seed, interval
from orchestrator.results.metrics import P_ENOUGH
from orchestrator.results.summary import Summary
from orchestrator.sweepfile.settings import DEFAULT_OBJECTIVES
from tests.benchmarks import answer, plateaus
from tests.benchmarks.recorded_front import summaries_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/measurements/records"
RECORDS = (
    *("fair-sst2", "fair-stsb", "fair-qqp", "sizes", "paper", "head-start", "rows-1000", "rows-4000", "layers"),
    *("smollm2-commonsense", "smollm2-heads", "gemma3-commonsense"),
    *("starting-trec", "starting-ratings", "starting-sick", "starting-films"),
)
"""All with three seeds or more of several adapters."""
GENERATORS = {answer.Simulation: answer.WORLDS, plateaus.Plateaus: plateaus.WORLDS}
MOST_SEEDS = 8
Sweep = tuple[list[Summary], dict[str, float]]
Outcome = Mapping[str, list[float]]
"""Of the sweeps of a world: `answers` and `enough` as flat pairs of what was said and what is true, and the `loss` of each."""


def simulated(generator: type[answer.Simulation], world: str, sweeps: int, seed: int = 7) -> Iterator[Sweep]:
    random = np.random.default_rng(seed)
    for _ in range(sweeps):
        sweep = generator(world, random)
        yield sweep.mark([*sweep.truths], sweep.seeds), sweep.truths


def parts_of(record: str) -> Iterator[tuple[str, list[Summary]]]:
    """Yields the configurations of a record on each of its tasks and on all of them."""
    full = summaries_of(FOLDER / f"{record}.csv")
    tasks = [*full[0].tasks]
    for part in [[task] for task in tasks] + [tasks] * (len(tasks) > 1):
        rows = []
        for row in full:
            scores = {key: score for key, score in row.scores.items() if key[0] in part}
            lucks = {task: luck for task, luck in row.tuning.lucks.items() if task in part}
            tuning = replace(row.tuning, lucks=lucks)
            credits = {key: values for key, values in row.credits.items() if key[0] in part}
            metrics = row.metrics | {"score": interval(by_seed(scores, part).values())}
            rows.append(replace(row, scores=scores, credits=credits, metrics=metrics, tuning=tuning,
                                tasks={task: row.tasks[task] for task in part}))  # fmt: skip
        yield f"{record}: {' + '.join(task.rpartition('/')[2] for task in part)}", rows


def redrawn(rows: Sequence[Summary], random: np.random.Generator, seeds: int) -> Sweep:
    """Returns a sweep around truths that are drawn as the seeds of recorded configurations leave them."""
    new, truths = [], {}
    directions, choices = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for row in rows:
        scores, training = np.array([*by_seed(row.scores, row.tasks).values()]), row.trained
        direction = directions.setdefault(training, random.standard_normal((MOST_SEEDS + 1, len(scores))))
        noise = direction @ (scores - scores.mean()) / math.sqrt(len(scores) - 1)
        luck = row.tuning.luck
        choice = choices.setdefault(training, random.standard_normal(2)) * math.sqrt(luck)
        truth = float(scores.mean() + noise[-1] / math.sqrt(len(scores)) + choice[0])
        truths[row.configuration] = truth
        drawn = {("task", seed): float(truth + choice[1] + noise[seed]) for seed in range(seeds)}
        tuning = replace(row.tuning, lucks={"task": luck})
        mean = interval(drawn.values())
        new.append(replace(row, scores=drawn, tasks={"task": mean}, metrics={"score": mean}, credits={}, tuning=tuning,
                           planned=seeds, finished=seeds, seeds=seeds))  # fmt: skip
    return mark_front(new, DEFAULT_OBJECTIVES), truths


def outcome(sweeps: Iterator[Sweep]) -> Outcome:
    """Returns what is said and what is true in judged sweeps."""
    result: dict[str, list[float]] = {"answers": [], "enough": [], "loss": []}
    for judged, truths in sweeps:
        best = max(truths.values()) - 1
        said = np.array([row.counts[P_ENOUGH] for row in judged])
        true = np.array([truths[row.configuration] >= best for row in judged])
        name = enough_of(judged)
        for row, probability, fact in zip(judged, said, true, strict=True):
            result["answers"] += [float(probability), float(fact)] if row.configuration == name else []
            result["enough"] += [float(probability), float(fact)] if 0.2 <= probability <= 0.8 else []
        result["loss"].append(float(-np.log(np.clip(np.where(true, said, 1 - said), 0.002, 1)).mean()))
    return result


def outcomes(sweeps: int, only: Sequence[str] = ()) -> Iterator[tuple[str, Outcome]]:
    for generator, worlds in GENERATORS.items():
        for world in worlds:
            if not only or world in only:
                yield world, outcome(simulated(generator, world, sweeps))
    for record in RECORDS:
        for name, rows in parts_of(record) if not only or record in only else ():
            random = np.random.default_rng(5)
            yield name, outcome(redrawn(rows, random, 3 if place % 2 else 5) for place in range(sweeps))


def cells(result: Outcome) -> str:
    parts = []
    for kind in ("answers", "enough"):
        pairs = np.reshape(result[kind], (-1, 2))
        said, true = (f"{100 * share:.0f} %" for share in (pairs.mean(axis=0) if len(pairs) else (math.nan, math.nan)))
        parts += [str(len(pairs)), said, true]
    return " | ".join([*parts, f"{np.mean(result['loss']):.3f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=60, help="sweeps of each world and record (60)")
    parser.add_argument("--only", nargs="*", default=[], help="worlds and records; all if none is named")
    options, total = parser.parse_args(), dict[str, list[float]]()
    print(f"| sweeps | answers | said | right | P(enough) | said | true | log loss |\n{'| --- ' * 8}|")
    for world, result in outcomes(options.sweeps, options.only):
        for kind, values in result.items():
            total.setdefault(kind, []).extend(values)
        print(f"| {world} | {cells(result)} |", flush=True)
    if total:
        print(f"| all | {cells(total)} |")


if __name__ == "__main__":
    main()
