"""Which run of two published tables is enough? `craft-sweeps judge` on tables in which nearly each row is one run.

    python -m tests.benchmarks.judged peft_method_comparison tinker_lora_rank_rate.csv --to docs/measurements/judged.md

The first is the folder of results of Hugging Face's method comparison (a JSON file for each run), the second a CSV with the
columns model, learning_rate, rank, test_nll and minutes. Runs of one model with equal rank and rate are seeds of one
configuration. In doubt by one run are the configurations that luck may bring to the best or within a point of it: CLEAR
standard deviations of a difference, by the spread of the table's repeated runs, or by that which `until` assumes.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from craft.words import list_some
from orchestrator import judge
from orchestrator.commands.api import Judgement
from orchestrator.results.metrics import P_ENOUGH, SIZE
from orchestrator.results.step import COUNTS, seconds_of_seed
from orchestrator.results.summary import Summary
from orchestrator.search.stages import CLEAR, PRIVATE, SPREAD

QUESTIONS = 1319
"""The test questions of GSM8K, by which the method comparison scores."""
MORE, WITHIN, SMALL, SHOWN = 2, 1.0, 4, 2
"""Further seeds that are proposed; points below the best that are enough; a small rank; so many labels are shown."""
PROPOSED = re.compile(r"Next: run (?:up to )?(\w+) more seeds? of (.*?)(?: \(about [^)]+\))?, which")

HEAD = """\
# Enough, judged: two published tables

```
{command}
```

This makes the page from two tables of August 2026 (Apache-2.0) with mostly one run a row: {methods} runs
of Hugging Face's method comparison (Llama-3.2-3B, accuracy on the {questions:,} test questions of GSM8K),
and {cells} LoRA trainings of {models} models by rank and rate (`sft_sweep.md` of tinker-cookbook; a point is
0.01 nats a token).

- **Which is enough is known for {known} of the {all} models**, because hardly any configuration has three
  runs.
- {repeats} LoRA configurations have two runs. Their scores have a standard deviation of {spread:.2f} points, so a
  few more seeds would settle most models. In {small} of the {models} models rank {ranks} or less is within a point
  of the best.
- The {questions:,} questions alone give each score of a method an interval of ± {sampling:.1f} points, so
  {doubtful} of {methods} methods may be the answer.
- Each rank has the rate with the best of these scores, so the best scores are too high.

*By rows alone*: the smallest within a point of the best row. *Judged*: the likeliest by `judge`,
with P(enough); `-`: one run each. *Would tell*: the configurations, the best first, that need
further seeds, or how many, and their hours. `r4 3e-4`: rank 4, learning rate 3e-4.

| model, runs | by rows alone | judged | would tell | hours |
| --- | --- | --- | --- | --- |
"""


def method_runs(folder: Path) -> list[dict[str, Any]]:
    """Returns a row for each run of the method comparison."""
    rows = []
    for file in sorted(folder.glob("*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        trained, name = result["train_info"], result["run_info"]["experiment_name"]
        rows.append(
            {
                "run": name.replace("llama-3.2-3B-", ""),
                "accuracy": trained["metrics"][-1]["test accuracy"],
                "n_test": QUESTIONS,
                "params": trained["num_trainable_params"],
                "train_time": trained["train_time"],
            }
        )
    return rows


def lora_runs(file: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields each model with a row for each of its runs."""
    for model, rows in pd.read_csv(file).groupby("model", sort=False):
        yield (
            str(model).rpartition("/")[2],
            [
                {
                    "run": f"r{row.rank} {row.learning_rate:.0e}".replace("e-0", "e-"),
                    "test_nll": row.test_nll,
                    "rank": row.rank,
                    "train_time": 60 * row.minutes,
                }
                for row in rows.itertuples()
            ],
        )


def in_doubt(rows: Sequence[Summary], spread: float) -> list[Summary]:
    """Returns the configurations of which one run does not say whether they are the best, or within a point of it."""
    best = max(row.score.mean for row in rows)
    noise = math.hypot(spread, PRIVATE * max(max(row.sampling) for row in rows) / 1.96)
    reach, taken = CLEAR * math.sqrt(2) * noise, alone(rows)
    least = best - WITHIN - reach
    near = [row for row in rows if row.score.mean >= least and row.value(SIZE) <= taken.value(SIZE)]
    return [row for row in rows if row in near or row.score.mean >= best - reach]


def alone(rows: Sequence[Summary]) -> Summary:
    """Returns the smallest configuration whose mean is within a point of the best."""
    best = max(row.score.mean for row in rows)
    return min((row for row in rows if row.score.mean >= best - WITHIN), key=lambda row: (row.value(SIZE), -row.score.mean))


def spread_of(judged: Iterable[Judgement]) -> tuple[int, float]:
    """Returns how many configurations have several runs, and the pooled standard deviation of their scores in points."""
    repeated = [[*row.scores.values()] for judgement in judged for row in judgement.record.summaries if row.score.n > 1]
    squares = [sum((score - fmean(scores)) ** 2 for score in scores) for scores in repeated]
    return len(repeated), math.sqrt(sum(squares) / sum(len(scores) - 1 for scores in repeated)) if repeated else SPREAD


def line(name: str, runs: int, judged: Judgement, spread: float) -> str:
    """Returns the line of one model: what its rows alone say, what is known, and what would tell."""
    rows, answer = judged.record.summaries, judged.answer
    taken = alone(rows)
    if answer.kind == "one seed":
        doubtful = in_doubt(rows, spread)
        seconds = MORE * seconds_of_seed([row.trained for row in doubtful], rows)
        few = f": {', '.join(labels(doubtful))}" if len(doubtful) <= SHOWN else ""
        verdict, tells = "-", f"{len(doubtful)} of {len(rows)}{few}"
    else:
        named = next(row for row in rows if row.configuration == answer.configuration)
        verdict = f"{'enough: ' if answer.kind == 'enough' else ''}{named.label} ({named.counts[P_ENOUGH]:.2f})"
        step = PROPOSED.search(answer.proposal)
        doubtful = [row for row in rows if step and row.label in step[2]]
        seconds = (COUNTS.index(step[1]) if step else 0) * seconds_of_seed([row.trained for row in doubtful], rows)
        tells = list_some(labels(doubtful), SHOWN) or "-"
    cells = (f"{name}, {runs}", taken.label, verdict, tells, f"{seconds / 3600:.0f}")
    return f"| {' | '.join(cells)} |"


def labels(rows: Iterable[Summary]) -> list[str]:
    return [row.label for row in sorted(rows, key=lambda row: -row.score.mean)]


def page(folder: Path, file: Path, command: str) -> str:
    methods, models = method_runs(folder), dict(lora_runs(file))
    compared = judge(methods, by="run")
    judged = {model: judge(rows, by="run", size="rank", independent=True) for model, rows in models.items()}
    repeats, spread = spread_of(judged.values())
    doubtful = in_doubt(compared.record.summaries, SPREAD)
    small = [model for model, judgement in judged.items() if alone(judgement.record.summaries).value(SIZE) <= SMALL]
    judgements = [compared, *judged.values()]
    head = HEAD.format(
        command=command,
        methods=len(methods),
        questions=QUESTIONS,
        cells=sum(map(len, models.values())),
        models=len(models),
        known=sum(judgement.answer.kind == "enough" for judgement in judgements),
        all=len(judgements),
        repeats=repeats,
        spread=spread,
        small=len(small),
        ranks=SMALL,
        sampling=max(max(row.sampling) for row in compared.record.summaries),
        doubtful=len(doubtful),
    )
    lines = [line("Llama-3.2-3B, methods", len(methods), compared, SPREAD)]
    lines += [line(model, len(models[model]), judgement, spread) for model, judgement in judged.items()]
    return head + "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="results of the method comparison")
    parser.add_argument("table", type=Path, help="the CSV of the LoRA trainings")
    parser.add_argument("--to", type=Path, help="the page; printed if not given")
    given = parser.parse_args(arguments)
    names = f"{given.folder.name} {given.table.name}{f' --to {given.to}' if given.to else ''}"
    text = page(given.folder, given.table, f"python -m tests.benchmarks.judged {names}")
    if given.to:
        given.to.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
