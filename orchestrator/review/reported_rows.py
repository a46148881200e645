"""`export --rows reported`: the rows whose scores a sweep reports, in files that `audit --data` and other programs read."""

from __future__ import annotations

import json
import re
from pathlib import Path

from craft.disk import replacing
from craft.tasks import find_task
from craft.tasks.splits import load_splits
from orchestrator.record.resume import check_data
from orchestrator.review.past_sweep import PastSweep


def write_reported(record: PastSweep, to: Path) -> dict[Path, int]:
    """Writes JSON Lines for each task, or test of it; classes by their names. A CSV would change texts that begin with `=`.

    Returns:
        The number of rows of each file.

    Raises:
        ValueError: the data are not here, or not those of the sweep.
    """
    sweep, written = record.sweep, dict[Path, int]()
    for task in (find_task(name, sweep.data) for name in sweep.task_names):
        most = sweep.training_for(task.name, {}).eval_examples
        splits = load_splits(task, sweep.data, protocol=sweep.protocol, eval_examples=most)
        check_data(sweep, (entry for entry in record.entries if entry.trial.task == task.name), {task.name: splits.fingerprint})
        for suffix, split in splits.reported.items():
            rows = [{name: row[name] for name in row if name != "row"} for row in split.to_list()]
            if task.kind == "classification":
                rows = [row | {"label": task.labels[row["label"]]} for row in rows]
            file = to / (re.sub(r"[^\w-]+", "-", task.name) + f"{suffix}.jsonl")
            with replacing(file) as aside:
                aside.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
            written[file] = len(rows)
    return written
