"""The smallest configuration that is enough for each task of the recorded sweeps: the table of README.md.

    python -m tests.benchmarks.enough

A row is decided if it survives three looks at its own record; otherwise it names the likeliest and says "not decided".

- Each configuration was tuned by its own search score: at least those that may be enough.
- P(enough) is at least SURE by the model of `craft-sweeps judge`, with the luck of choosing rates.
- P(enough) is at least SURE by draws around each mean alone, without any model of how true scores scatter.

Shares are of the parameters of a LoRA of rank 8 on the same projections, counted from the record's own LoRA. `sizes.csv` has
no full fine-tuning, so it is no row.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from orchestrator.plan.tuning import best_of
from orchestrator.record.state import Entry
from orchestrator.results import posterior
from orchestrator.results.front import SEEDS, above_guessing, mark_front
from orchestrator.results.luck import helps_most
from orchestrator.results.metrics import P_ENOUGH, SIZE, full_label
from orchestrator.results.posterior import Evidence, Numbers, shares
from orchestrator.results.probabilities import evidence
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.results.tuning import read_tried
from orchestrator.sweepfile.settings import DEFAULT_OBJECTIVES, Enough
from tests.benchmarks.trials import read_trials

RECORDS = Path(__file__).parents[2] / "docs/measurements/records"
FAIR = ("fair-sst2", "fair-stsb", "fair-qqp")
SWEEPS = (*FAIR, "rows-1000", "rows-4000", "paper", "smollm2-commonsense", "smollm2-heads", "gemma3-commonsense")
"""Records of the table, in its order."""
WITHIN, SURE = Enough().within, Enough().sure
DRAWS = 20_000
RATE = "learning_rate"


@dataclass(frozen=True)
class Row:
    """What the record of one task decides."""

    task: str
    entries: Sequence[Entry]
    named: Summary  # the smallest that is enough, or the likeliest
    probability: float  # the smaller of the two probabilities that it is enough
    decided: bool  # it survives all three looks
    perhaps: Summary | None  # the smallest that may be enough, if that is another one
    other_rates: tuple[str, ...]  # labels of configurations that may be enough and were not tuned by their own score
    would_tell: str  # what would decide most: `seeds`, `scored rows` or `rates`


@cache
def judged(sweep: str) -> dict[str, tuple[list[Entry], list[Summary]]]:
    """Returns for each task of a record its trials and the configurations that ran with all seeds."""
    parts = dict[str, list[Entry]]()
    for entry in sorted(read_trials(RECORDS / f"{sweep}.csv"), key=lambda entry: entry.trial.task):
        parts.setdefault(entry.trial.task, []).append(entry)
    marked = {task: mark_front(summarize_entries(part), DEFAULT_OBJECTIVES) for task, part in parts.items()}
    return {task: (part, [summary for summary in marked[task] if summary.complete]) for task, part in parts.items()}


@cache
def rows() -> list[Row]:
    return [judge_task(task, *part) for sweep in SWEEPS for task, part in judged(sweep).items()]


def judge_task(task: str, entries: Sequence[Entry], complete: Sequence[Summary]) -> Row:
    observed = evidence(complete, DEFAULT_OBJECTIVES, WITHIN)
    assert observed is not None
    alone = shares(draw_alone(observed), np.zeros((len(complete), 1)), WITHIN)
    probability = {
        row.configuration: min(row.counts[P_ENOUGH], float(share)) for row, share in zip(complete, alone, strict=True)
    }
    possible = [row for row in complete if probability[row.configuration] > 1 - SURE]
    other_rates = tuple(row.label for row in possible if not is_tuned_by_own_score(row, entries))
    noise = 2 * math.sqrt(SURE * (1 - SURE) / posterior.DRAWS)  # the fewer draws of both
    sure = [row for row in possible if probability[row.configuration] >= SURE + noise and row.score.n >= SEEDS]
    decided = bool(sure) and not other_rates and above_guessing(complete)
    by_probability = max(complete, key=lambda row: (probability[row.configuration], -row.value(SIZE)))
    named = min(sure, key=lambda row: row.value(SIZE)) if decided else by_probability
    smallest = min(possible, key=lambda row: row.value(SIZE), default=named)
    perhaps = smallest if smallest.value(SIZE) < named.value(SIZE) else None
    helps = helps_most(complete, observed.errors.tolist())
    would_tell = "rates" if other_rates else "scored rows" if helps == "examples" else "seeds"
    return Row(task, entries, named, probability[named.configuration], decided, perhaps, other_rates, would_tell)


def draw_alone(observed: Evidence) -> Numbers:
    """Returns draws `(DRAWS, n)` of the true scores as seeds, examples and choices leave them, each for itself."""
    random = np.random.default_rng(0)
    variance = observed.errors * observed.freedom / random.chisquare(observed.freedom, (DRAWS, len(observed.means)))
    noise = random.standard_normal((DRAWS, len(observed.means))) * np.sqrt(variance + observed.luck)
    return observed.means + noise


def is_tuned_by_own_score(row: Summary, entries: Sequence[Entry]) -> bool:
    """Returns whether a configuration has the rate that its own score on the choosing rows takes; true if it was not tuned."""
    if not row.tuning.tuned:
        return True
    size = row.parameters.get("cut_to")
    group = row.trained
    candidates = [entry for entry in entries if entry.trial.group == group and entry.trial.parameters.get("cut_to") == size]
    rates = sorted({float(entry.trial.parameters[RATE]) for entry in candidates})
    by_rate = [[entry for entry in candidates if float(entry.trial.parameters[RATE]) == rate] for rate in rates]
    place = best_of({place: read_tried(tried) for place, tried in enumerate(by_rate)})
    return place is None or rates[place] == float(row.parameters[RATE])


def table() -> Iterable[str]:
    """Yields the lines of the table, a row for each task of each record."""
    scores = ("score", "P(enough)", "perhaps already", "what would tell", "parameters")
    names = ("model", "task, examples", "smallest that is enough", *scores)
    yield f"| {' | '.join(names)} | of LoRA r8's |"
    yield "| --- " * (len(names) + 1) + "|"
    for row in rows():
        yield f"| {' | '.join(_cells(row))} |"


def _cells(row: Row) -> tuple[str, ...]:
    first = next(entry for entry in row.entries if entry.trial.method == "lora" and "cut_to" not in entry.trial.parameters)
    assert first.result is not None
    counts, parameters = first.result.counts, first.trial.parameters
    base = counts["total_parameters"] - counts[SIZE] - counts["head_parameters"]
    name, score, size = Path(str(parameters["model"])).name.partition(".")[0], row.named.score, row.named.value(SIZE)
    reading = "not decided; likeliest: " if not row.decided else "no adapter: " if row.named.method in ("head", "full") else ""
    ratio = size / (8 * counts[SIZE] / float(parameters["rank"]))
    return (
        f"{name}, {base / 1e6:.0f}M",
        f"{row.task.rpartition('/')[2]}, {int(first.result.facts['train_examples']):,}",
        f"{reading}{full_label(row.named)}",
        f"{score.mean:.1f} ({score.low:.1f} to {score.high:.1f})",
        f"{row.probability:.2f}",
        f"{full_label(row.perhaps)} ({row.perhaps.value(SIZE):,.0f})" if row.perhaps else "",
        row.would_tell if row.perhaps or not row.decided else "",
        f"{size:,.0f}",
        f"{ratio:.0f} times" if ratio > 10 else f"{100 * ratio:.3g} %",
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("\n".join(table()))
    for row in rows():
        if row.other_rates:
            print(f"{row.task}: not tuned by their own score: {', '.join(row.other_rates)}")


if __name__ == "__main__":
    main()
