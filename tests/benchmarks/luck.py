"""Are the chances right on examples that chose nothing? With the stored answers of real sweeps.

    python -m tests.benchmarks.luck

The record has the answers of four sweeps of MiniLM: eight configurations (the head, CRAFT and LoRA at several ranks and rates,
two cuts), three seeds, 640 training examples. A case of the first kind takes a random half of the rows and two of the seeds,
computes the chances from them alone, and asks the third seed on the other half. What is asked is itself of one seed and of so
many rows, so the prediction is made for that: the draws get the noise of one seed and of these rows on top. All cases of the
first kind ask for the same 96 facts (four tasks, eight configurations, three seeds). In those of the second kind the truth is
drawn, and the luck alone is real.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from orchestrator.results import chances
from orchestrator.results.luck import luck, shared_variance
from orchestrator.results.summary import Summary
from orchestrator.sweepfile.objectives import DEFAULT_OBJECTIVES
from tests.benchmarks.chances import bins, summary, truth_of

RECORD = Path(__file__).parents[2] / "docs/measurements/records/answers.npz"
TASKS = ("sst2", "stsb", "qqp", "tickets")
Cases = dict[str, list[Any]]


class Answers:
    """One task's answers `(configurations, seeds, rows)`: right or not in percent, or a regression's values."""

    def __init__(self, record: Any, task: str) -> None:
        self.sizes, rows, values = record[f"{task}.sizes"], int(record[f"{task}.rows"]), record[f"{task}.answers"]
        self.labels = record[f"{task}.labels"].astype(float) if f"{task}.labels" in record else None
        unpacked = np.unpackbits(values, axis=2)[:, :, :rows] if self.labels is None else values
        self.values = unpacked.astype(float) * (100 if self.labels is None else 1)

    def parts(self, rows: Any) -> tuple[Any, Any]:
        """Scores `(configurations, seeds)` over these rows, and what each row contributes to them."""
        values = self.values[:, :, rows]
        if self.labels is None:
            return values.mean(axis=2), values
        ranks, labels = np.apply_along_axis(rankdata, 2, values), rankdata(self.labels[rows])
        x = (ranks - ranks.mean(axis=2, keepdims=True)) / ranks.std(axis=2, keepdims=True)
        y = (labels - labels.mean()) / labels.std()
        score = (x * y).mean(axis=2, keepdims=True)
        return 100 * score[..., 0], 100 * (x * y - score / 2 * (x**2 + y**2) + score)


def sweep(scores: Any, credits: Any, sizes: Any, stored: bool) -> list[Summary]:
    """The configurations of a sweep with these scores `(configurations, seeds)` and credits."""
    summaries = []
    for number, size in enumerate(sizes):
        result = summary(f"c{number}", scores[number], float(size))
        by_seed = {("task", seed): values for seed, values in enumerate(credits[number])}
        summaries.append(replace(result, credits=by_seed if stored else {}))
    return summaries


def held_half(answers: Answers, random: np.random.Generator, third: int, stored: bool) -> Cases:
    """Predictions and what came true, of a random half of the rows with two of three seeds."""
    rows, other_rows = np.array_split(random.permutation(answers.values.shape[2]), 2)
    seeds, (scores, credits) = [seed for seed in range(3) if seed != third], answers.parts(rows)
    summaries = sweep(scores[:, seeds], credits[:, seeds], answers.sizes, stored)
    errors = chances._moderated(summaries)[1]
    drawn = chances._draws(summaries, errors, {"score": "maximize"})
    assert drawn is not None
    noise = np.array([2 * errors[result.configuration][0] for result in summaries]) + (
        np.array(luck(summaries)) if stored else 0.0
    )
    asked = drawn + random.normal(size=drawn.shape) * np.sqrt(noise)
    truth, size, free = answers.parts(other_rows)[0][:, third], answers.sizes[:, None], np.zeros((len(summaries), 1))
    values = np.array([result.score.mean for result in summaries])
    front = chances.shares(values[None], size) > 0
    return {
        "front": list(zip(chances.shares(asked, size), chances.shares(truth[None], size) > 0, strict=True)),
        "within": list(zip(chances.shares(asked, free, 1.0), chances.shares(truth[None], free, 1.0) > 0, strict=True)),
        "curse": list(np.stack([values - truth, drawn.mean(axis=0) - truth], axis=1)[front]),
    }


def resampled(answers: Answers, random: np.random.Generator, differences: float, stored: bool) -> Cases:
    """The same of a sweep whose truth is known: true scores are drawn; the luck is that of rows drawn with replacement, with
    their answers of all configurations and seeds; a seed adds one point of noise."""
    credits = answers.parts(np.arange(answers.values.shape[2]))[1]
    many, seeds, rows = credits.shape
    credits = (credits - credits.mean(axis=2, keepdims=True))[random.permutation(many)][:, :, random.integers(0, rows, rows)]
    size, true = truth_of(random, many, differences)
    seen = true[:, None] + credits.mean(axis=2) + random.normal(0, 1, (many, seeds))
    summaries = chances.with_chances(sweep(seen, credits, size, stored), DEFAULT_OBJECTIVES)
    front = chances.shares(seen.mean(axis=1)[None], size[:, None]) > 0
    gaps = (
        np.array([(result.score.mean, result.counts[chances.EXPECTED]) for result in summaries])
        - (true + credits.mean())[:, None]
    )
    kinds = ("front", chances.P_FRONT, size[:, None], 0.0), ("within", chances.P_WITHIN, np.zeros((many, 1)), 1.0)
    cases: Cases = {"curse": list(gaps[front])}
    for name, column, costs, within in kinds:
        truth = chances.shares(true[None], costs, within) > 0
        cases[name] = list(zip([result.counts[column] for result in summaries], truth, strict=True))
    return cases


def deviations(answers: Answers) -> tuple[float, float, float]:
    """Standard deviations in points, over all rows: luck that seeds share, luck of each seed, the rest of a seed."""
    scores, credits = answers.parts(np.arange(answers.values.shape[2]))
    many, seeds, rows = credits.shape
    own = (credits - credits.mean(axis=(0, 1))) * (many / (many - 1)) ** 0.5
    shared = np.mean([shared_variance(table) for table in own])
    rest = own - own.mean(axis=1, keepdims=True)
    each = float((rest - rest.mean(axis=2, keepdims=True)).var(axis=2).mean()) * seeds / (seeds - 1) / rows
    return float(shared) ** 0.5, each**0.5, max(0.0, float(scores.var(axis=1, ddof=1).mean()) - each) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, default=100, help="cases of each task and seed (100)")
    parts, record = parser.parse_args().parts, np.load(RECORD)
    every = {task: Answers(record, task) for task in TASKS}
    print("| task | rows | shared by seeds | drawn with each seed | the rest of a seed |\n| --- | --- | --- | --- | --- |")
    for task, answers in every.items():
        print(f"| {task} | {answers.values.shape[2]} | " + " | ".join(f"{value:.2f}" for value in deviations(answers)) + " |")
    print("\n| cases | luck | P(front) | P(within 1 of best) | score - truth | expected - truth |\n" + "| --- " * 6 + "|")
    for differences, stored in itertools.product((None, 1.0, 2.0, 3.0), (False, True)):
        random, rows = np.random.default_rng(1), Cases(front=[], within=[], curse=[])
        for task, _, third in itertools.product(TASKS, range(parts), range(3)):
            if differences is None:
                cases = held_half(every[task], random, third, stored)
            else:
                cases = resampled(every[task], random, differences, stored)
            for name, cells in cases.items():
                rows[name] += cells
        score, expected = np.mean(rows["curse"], axis=0)
        line = bins(rows["front"]), bins(rows["within"]), f"{score:+.2f}", f"{expected:+.2f}"
        kind = "other half, third seed" if differences is None else f"rows drawn again, differences {differences:g}"
        print(f"| {kind} | {'in' if stored else 'left out'} | {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()
