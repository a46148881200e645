"""`python -m orchestrator.export SWEEP --format FORMAT --to DIR` writes a sweep's results for others.

`trials` is one CSV with a line for each finished trial (`orchestrator.review.trials_table`).
`peft` is the format of Hugging Face's comparison of PEFT methods: one JSON file for each finished trial
(`orchestrator.review.peft_format`). The page, the table and the CSV of a sweep's configurations are written when it ends; see
docs/page.md.

Exit status: 0 written; 1 the sweep has nothing of that kind (yet); 2 the call is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from craft.disk import replacing
from orchestrator.command import answer, flags_for
from orchestrator.record.checkpoints import SLICES_FOLDER, stored_evaluations
from orchestrator.results.summary import Entry
from orchestrator.review.past_sweep import PastSweep, find_sweep
from orchestrator.review.peft_format import Trained, file_name, peft_row
from orchestrator.review.pick import NothingMeets
from orchestrator.review.trials_table import write_trials
from orchestrator.tools.folders import refuse_full, slug

FORMATS = ("trials", "peft")
TRIALS_FILE = "trials.csv"

EXAMPLES = """\
examples:
  python -m orchestrator.export ranks --format trials --to results
      trials.csv: a line for each finished trial, with its parameters, scores and costs: a record to publish, from which
      tables can be made again
  python -m orchestrator.export ranks --format peft --to results
      one JSON file for each finished trial, with the keys of huggingface/peft, method_comparison/MetaMathQA/results. What the
      sweep's record does not know is null. Cut configurations, which were not trained, and trials that only tuned are left out

exit status: 0 written; 1 the sweep has no finished trial; 2 the call is wrong
"""


def parser() -> argparse.ArgumentParser:
    """The command line's flags."""
    flags = flags_for("export", "Write a sweep's results in a format that others read.", EXAMPLES)
    flags.add_argument("sweep", metavar="SWEEP", help="a sweep's name, or its folder runs/NAME")
    formats = "trials: one CSV; peft: Hugging Face's comparison of PEFT methods"
    flags.add_argument("--format", choices=FORMATS, required=True, help=formats)
    flags.add_argument("--to", metavar="DIR", type=Path, required=True, help="where to write; made, and must be empty")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    return answer(parser(), arguments, _main)


def _main(given: argparse.Namespace, console: Console) -> None:
    refuse_full(given.to)
    record = find_sweep(given.sweep, given.tracking_uri, given.storage)
    {"trials": _trials, "peft": _peft}[given.format](record, given.to, console)


def _trials(record: PastSweep, to: Path, console: Console) -> None:
    if not any(one.result is not None and one.result.status == "finished" for one in record.entries):
        raise NothingMeets(f"{record.name} has no finished trial, so there is nothing to write")
    to.mkdir(parents=True, exist_ok=True)
    with replacing(to / TRIALS_FILE) as aside:
        written = write_trials(record.entries, aside)
    console.print(f"{written} trials written to {to / TRIALS_FILE}")


def _peft(record: PastSweep, to: Path, console: Console) -> None:
    screened = {one.configuration for one in record.summaries if one.screened}
    chosen = [one for one in record.entries if one.configuration not in screened and _counts(one)]
    if not chosen:
        raise NothingMeets(f"{record.name} has no finished trial that was trained and scored, so there is nothing to write")
    to.mkdir(parents=True, exist_ok=True)
    without: set[str] = set()
    named = Counter((slug(one.label), one.task, one.seed) for one in chosen)
    for entry in chosen:
        alone = named[slug(entry.label), entry.task, entry.seed] == 1
        row = _row(record, entry, entry.label if alone else f"{entry.configuration} {entry.label}")
        if row["train_info"]["metrics"][-1]["test accuracy"] is None:
            without.add(entry.task)
        with replacing(to / file_name(row)) as aside:
            aside.write_text(json.dumps(row, indent=2), encoding="utf-8")
    console.print(f"{len(chosen)} trials written to {to}, each as Hugging Face's method_comparison has it")
    if without:
        console.print(f"the format knows accuracies only: those of {', '.join(sorted(without))}, scored otherwise, are null")


def _counts(entry: Entry) -> bool:
    """Whether the trial was trained and its reported score is known."""
    result = entry.result
    finished = result is not None and result.status == "finished" and "score" in result.metrics
    return finished and "cut_from" not in entry.parameters


def _row(record: PastSweep, entry: Entry, label: str) -> dict[str, Any]:
    from craft.trainer.adapter_folder import RUN_FILE

    assert entry.result is not None
    with tempfile.TemporaryDirectory(prefix="craft-export-") as scratch:
        adapter = record.adapter(entry.key, Path(scratch))
        run = json.loads((adapter / RUN_FILE).read_text())
        began = record.began.get(entry.key)
        return peft_row(Trained(label, run, entry.result, _evaluations(adapter, entry), adapter, began))


def _evaluations(adapter: Path, entry: Entry) -> list[Mapping[str, Any]]:
    """What the trial told of its evaluations, from beside its adapter; of a slice of nested ranks, its own scores."""
    nested = adapter.parent.parent.name == SLICES_FOLDER
    checkpoint = adapter.parents[2] if nested else adapter.parent
    told = [one["progress"] for one in stored_evaluations(checkpoint)]
    own = [one | {"metrics": one.get("slices", {}).get(entry.key)} for one in told] if nested else told
    searched = [one for one in own if one["metrics"] and "search_score" in one["metrics"]]
    # Between two tests of a suite a trial tells its step again, with the scores of the tests so far.
    return list({one["step"]: one for one in reversed(searched)}.values())[::-1]


if __name__ == "__main__":
    sys.exit(main())
