"""Are the chances right on examples that chose nothing? Random parts of real dev sets, from stored answers.

    python -m tests.benchmarks.luck

The record has the answers of four sweeps of MiniLM: eight configurations (the head, CRAFT and LoRA at several ranks and rates,
two cuts), three seeds, 640 training examples. Each case takes a random part of the rows and two of the seeds, computes the
chances from them alone, and asks the third seed on the other rows. What is asked is itself of one seed and of so many rows, so
the prediction is made for that: the draws get the noise of one seed and of these rows on top.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from orchestrator.results import chances
from orchestrator.results.intervals import interval
from orchestrator.results.luck import luck, shared_variance
from orchestrator.results.summary import Summary
from tests.benchmarks.chances import bins

RECORD = Path(__file__).parents[2] / "docs/measurements/records/answers.npz"
TASKS = ("sst2", "stsb", "qqp", "tickets")


class Answers:
    """One task's answers `(configurations, seeds, rows)`: right or not in percent, or a regression's values."""

    def __init__(self, record: Any, task: str) -> None:
        self.sizes, rows, values = record[f"{task}.sizes"], int(record[f"{task}.rows"]), record[f"{task}.answers"]
        self.labels = record[f"{task}.labels"].astype(float) if f"{task}.labels" in record else None
        packed = np.unpackbits(values, axis=2)[:, :, :rows] if self.labels is None else values
        self.values = packed.astype(float) * (100 if self.labels is None else 1)

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


def summaries(answers: Answers, rows: Any, seeds: Any, stored: bool) -> list[Summary]:
    """The configurations as a sweep that was scored on these rows alone would have them."""
    scores, credits = answers.parts(rows)
    found = []
    for number, size in enumerate(answers.sizes):
        by_seed = {("task", int(seed)): float(scores[number, seed]) for seed in seeds}
        value, name = interval(by_seed.values()), f"c{number}"
        kept = {key: credits[number, key[1]] for key in by_seed} if stored else {}
        found.append(
            Summary(
                name,
                name,
                "lora",
                {},
                {"score": value},
                {"task": value},
                {"trainable_parameters": float(size)},
                by_seed,
                len(by_seed),
                len(by_seed),
                0,
                0,
                len(by_seed),
                credits=kept,
            )
        )
    return found


def case(answers: Answers, random: np.random.Generator, share: float, third: int, stored: bool) -> dict[str, list[Any]]:
    """Predictions and what came true, of one random part of the rows with two of three seeds."""
    order = random.permutation(answers.values.shape[2])
    rows, others = np.split(order, [round(share * len(order))])
    found = summaries(answers, rows, [seed for seed in range(3) if seed != third], stored)
    errors = chances._moderated(found)[1]
    drawn = chances._draws(found, errors, {"score": "maximize"})
    assert drawn is not None
    noise = np.array([2 * errors[one.configuration][0] for one in found])
    if stored:
        noise += np.array(luck(found)) * len(rows) / len(others)
    asked = drawn + random.normal(size=drawn.shape) * np.sqrt(noise)
    scores, _ = answers.parts(others)
    truth, size, free = scores[:, third][None], answers.sizes[:, None], np.zeros((len(found), 1))
    values = np.array([one.score.mean for one in found])
    front = chances.shares(values[None], size) > 0
    return {
        "front": list(zip(chances.shares(asked, size), chances.shares(truth, size) > 0, strict=True)),
        "within": list(zip(chances.shares(asked, free, 1.0), chances.shares(truth, free, 1.0) > 0, strict=True)),
        "curse": list(zip((values - truth[0])[front], (drawn.mean(axis=0) - truth[0])[front], strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, default=100, help="random parts of a task's rows (100)")
    parts, record = parser.parse_args().parts, np.load(RECORD)
    every = {task: Answers(record, task) for task in TASKS}
    print("| task | rows | shared by seeds | drawn with each seed | seeds' other luck |\n| --- | --- | --- | --- | --- |")
    for task, answers in every.items():
        print(f"| {task} | {answers.values.shape[2]} | " + " | ".join(f"{value:.2f}" for value in deviations(answers)) + " |")
    print(
        "\n| tasks | luck of examples | P(front) | P(within 1 of best) | score - truth | expected - truth |\n"
        + "| --- " * 6
        + "|"
    )
    for names in (TASKS, *((task,) for task in TASKS)):
        for stored in (False, True):
            random = np.random.default_rng(1)
            rows: dict[str, list[Any]] = {"front": [], "within": [], "curse": []}
            for task, _, third in itertools.product(names, range(parts), range(3)):
                for name, cells in case(every[task], random, 0.5, third, stored).items():
                    rows[name] += cells
            score, expected = np.mean(rows["curse"], axis=0)
            cells = (bins(rows["front"]), bins(rows["within"]), f"{score:+.2f}", f"{expected:+.2f}")
            print(f"| {', '.join(names)} | {'in' if stored else 'left out'} | {' | '.join(cells)} |", flush=True)


def deviations(answers: Answers) -> tuple[float, float, float]:
    """Standard deviations in points, over all rows: luck that seeds share, luck of each seed, the rest of a seed."""
    scores, credits = answers.parts(np.arange(answers.values.shape[2]))
    many, seeds, rows = credits.shape
    own = (credits - credits.mean(axis=(0, 1))) * (many / (many - 1)) ** 0.5
    shared = np.mean([shared_variance(table) for table in own])
    rest = own - own.mean(axis=1, keepdims=True)
    each = float((rest - rest.mean(axis=2, keepdims=True)).var(axis=2).mean()) * seeds / (seeds - 1) / rows
    return float(shared) ** 0.5, each**0.5, max(0.0, float(scores.var(axis=1, ddof=1).mean()) - each) ** 0.5


if __name__ == "__main__":
    main()
