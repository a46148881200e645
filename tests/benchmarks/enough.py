"""The smallest configuration that is enough for each task of the recorded sweeps: the table of README.md.

    python -m tests.benchmarks.enough

The answers are those of `craft-sweeps judge` over the trials of one task. Shares are of the parameters of a LoRA of rank 8 on
the same projections, counted from the record's own LoRA, and of the base model's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from orchestrator import judge

RECORDS = Path(__file__).parents[2] / "docs/measurements/records"
SWEEPS = ("fair", "sizes", "paper", "smollm2-commonsense", "smollm2-heads", "gemma3-commonsense")
"""Records of the table, in its order."""
TRAINED, HEAD, TOTAL = (f"count.{name}_parameters" for name in ("trainable", "head", "total"))


def table() -> Iterable[str]:
    """Yields the lines of the table, a row for each task of each record."""
    yield "| model | task, examples | smallest that is enough | score | P(enough) | parameters | of LoRA r8's | of the model |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for sweep in SWEEPS:
        trials = pd.read_csv(RECORDS / f"{sweep}.csv", dtype=str, keep_default_na=False)
        for _, rows in trials.groupby("task"):
            yield f"| {' | '.join(_cells(rows))} |"


def _cells(trials: pd.DataFrame) -> tuple[str, ...]:
    judgement = judge(trials)
    answer = judgement.answer
    assert answer is not None
    row = judgement.front.set_index("configuration").loc[answer.configuration]
    lora = trials[(trials.method == "lora") & (trials["parameter.cut_to"] == "")].iloc[0]
    rank_8 = 8 * int(lora[TRAINED]) / int(lora["parameter.rank"])
    whole = int(lora[TOTAL]) - int(lora[TRAINED]) - int(lora[HEAD])
    name = Path(lora["parameter.model"]).name.partition(".")[0]
    task, size = lora.task.rpartition("/")[2], int(row.trainable_parameters)
    return (
        f"{name}, {whole / 1e6:.0f}M",
        f"{task}, {int(lora['fact.train_examples']):,}",
        f"{_reading(answer.kind, row.method)}{row.label}",
        f"{row.score:.1f} ({row.score_low:.1f} to {row.score_high:.1f})",
        f"{row.p_enough:.2f}",
        f"{size:,}",
        _share(size / rank_8),
        _share(size / whole),
    )


def _reading(kind: str, method: str) -> str:
    if kind == "head" or (kind == "enough" and method == "full"):
        return "no adapter: "
    return "" if kind == "enough" else "not decided; likeliest: "


def _share(ratio: float) -> str:
    return f"{ratio:.0f} times" if ratio > 10 else "all" if ratio == 1 else f"{100 * ratio:.3g} %"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("\n".join(table()))


if __name__ == "__main__":
    main()
