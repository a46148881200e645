"""Sweeps that `suggest` writes against plain PEFT scripts, on rows that neither had.

    python -m tests.benchmarks.suggested FILE --label label --rows 2400 --held 1500 --hours 0.1 0.25 0.5

The file's last rows, in an order drawn by a seed, are held; the first are the user's. For each number of hours the suggested
sweep is run as it was written and its answer is taken; the three scripts train for three epochs on the same rows. All are
scored on the held rows. A script that takes longer than the hours is no match for the sweep of these hours.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from craft.tasks.files import Rows, read_rows
from craft.tasks.rows import label_name
from orchestrator.suggest.facts import columns_of

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
BATCH, LENGTH = 16, 128
EVERY = ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"]


def lora(rank: int, targets: Sequence[str]) -> dict[str, Any]:
    return {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": [*targets]}


SCRIPTS = {
    "LoRA r8 at 2e-4": (lora(8, ["query", "value"]), 2e-4),
    "LoRA r8 at 1e-3": (lora(8, ["query", "value"]), 1e-3),
    "LoRA r16 on all linears at 2e-4": (lora(16, EVERY), 2e-4),
}
"""The configuration of PEFT's adapter, and the learning rate."""


class Measured(NamedTuple):
    """What a script or a sweep's answer has on the held rows, its trainable parameters without the head, and the seconds."""

    name: str
    score: float
    parameters: int
    seconds: float


class Part(NamedTuple):
    """Texts (one or two of each row) and their labels: numbers, or places in the names of classes."""

    texts: list[tuple[str, ...]]
    labels: list[Any]
    names: list[str]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file")
    parser.add_argument("--label", required=True)
    parser.add_argument("--rows", type=int, default=2400, help="the rows that the sweep and the scripts have")
    parser.add_argument("--held", type=int, default=1500, help="the rows that score them")
    parser.add_argument("--hours", type=float, nargs="*", default=[0.1, 0.25, 0.5])
    parser.add_argument("--epochs", type=float, default=3.0, help="of the scripts; 0: none runs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rows = read_rows(options.file)
    task = columns_of(rows, options.label, ())
    order = random.Random(options.seed).sample(range(len(rows)), len(rows))
    mine, held = (part_of(rows, part, task) for part in (order[: options.rows], order[-options.held :]))
    for name, (adapter, rate) in SCRIPTS.items() if options.epochs else ():
        began = time.perf_counter()
        model, tokenizer, size = plain(adapter, len(mine.names), options.seed)
        fit(model, tokenizer, rate, mine, options.epochs)
        seconds = time.perf_counter() - began
        show(Measured(name, score_model(model, tokenizer, held), size, seconds))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mine.csv"
        write_rows(file, rows, [*task["text"], options.label], order[: options.rows])
        for hours in options.hours:
            show(run_suggested(file, options.label, hours, held))


def part_of(rows: Rows, numbers: Sequence[int], task: dict[str, Any]) -> Part:
    cells = rows.column(task["label"])
    names = [] if task.get("kind") == "regression" else sorted({str(label_name(cell)) for cell in cells})
    labels = [names.index(str(label_name(cells[row]))) if names else float(cells[row]) for row in numbers]
    return Part([tuple(rows.column(name)[row] for name in task["text"]) for row in numbers], labels, names)


def show(measured: Measured) -> None:
    name, score, parameters, seconds = measured
    print(f"{name:<60} {score:6.1f}  {parameters:>9,} parameters  {seconds:6.0f} s", flush=True)


def write_rows(file: Path, rows: Rows, columns: Sequence[str], numbers: Sequence[int]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(columns)
        writer.writerows([rows.column(name)[row] for name in columns] for row in numbers)


def plain(adapter: dict[str, Any], classes: int, seed: int) -> tuple[Any, Any, int]:
    """Returns the model with an adapter of PEFT (without one, all is trained), its tokenizer and the size without the head."""
    import peft
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from craft.models.files import resolve_model

    torch.manual_seed(seed)
    folder = resolve_model(MODEL, None)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=classes or 1)
    if adapter:
        model = peft.get_peft_model(model, peft.get_peft_config({"task_type": "SEQ_CLS"} | adapter))
    weights = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    size = sum(weight.numel() for name, weight in weights if "classifier" not in name)
    return model, AutoTokenizer.from_pretrained(folder), size


def fit(model: Any, tokenizer: Any, rate: float, mine: Part, epochs: float) -> None:
    """Trains as a tutorial of PEFT does: AdamW, one rate for adapter and head, falling linearly, the last weights."""
    import torch
    from transformers import get_linear_schedule_with_warmup

    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=rate, weight_decay=0.01)
    steps = round(epochs * -(-len(mine.labels) // BATCH))
    schedule = get_linear_schedule_with_warmup(optimizer, 0, steps)
    order: list[int] = []
    model.train()
    for _ in range(steps):
        if not order:
            order = torch.randperm(len(mine.labels)).tolist()
        rows, order = order[:BATCH], order[BATCH:]
        inputs = tokenize(tokenizer, [mine.texts[row] for row in rows])
        labels = torch.tensor([mine.labels[row] for row in rows])
        loss = model(**inputs, labels=labels if mine.names else labels.float()).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def tokenize(tokenizer: Any, texts: Sequence[tuple[str, ...]]) -> Any:
    columns = [list(column) for column in zip(*texts, strict=True)]
    return tokenizer(*columns, truncation=True, max_length=LENGTH, padding=True, return_tensors="pt")


def score_model(model: Any, tokenizer: Any, held: Part) -> float:
    """Returns the accuracy, or Pearson's correlation of numbers, in points."""
    import torch

    model.eval()
    outputs = []
    with torch.inference_mode():
        for at in range(0, len(held.labels), 64):
            outputs.append(model(**tokenize(tokenizer, held.texts[at : at + 64])).logits)
    logits = torch.cat(outputs).float().numpy()
    if not held.names:
        return 100 * float(np.corrcoef(logits[:, 0], held.labels)[0, 1])
    return 100 * float(np.mean(logits.argmax(1) == np.array(held.labels)))


def score_taken(model: Any, tokenizer: Any, held: Part) -> float:
    """Returns the score of an adapter of a sweep, which has its own order of the classes."""
    places = {name: place for place, name in model.config.id2label.items()}
    labels = [places[held.names[label]] for label in held.labels] if held.names else held.labels
    return score_model(model, tokenizer, held._replace(labels=labels))


def run_suggested(file: Path, label: str, hours: float, held: Part) -> Measured:
    """Runs a suggested sweep, takes its answer and scores that on the held rows."""
    from craft import load_adapter

    folder = Path(tempfile.mkdtemp(dir=file.parent))
    began = time.perf_counter()
    text = command(folder, "suggest", "--model", MODEL, "--data", str(file), "--label", label, "--hours", f"{hours:g}")
    (folder / "mine.yaml").write_text(text, encoding="utf-8")
    print("".join(f"    {line}\n" for line in text.splitlines() if line.startswith("#")), end="", flush=True)
    command(folder, "run", "mine.yaml")
    seconds = time.perf_counter() - began
    taken = json.loads(command(folder, "take", "mine", "--to", str(folder / "taken"), "--json"))
    score = score_taken(*load_adapter(taken["adapters"][0]["path"]), held)
    return Measured(f"suggested for {60 * hours:g} min: {taken['label']}", score, int(taken["trainable_parameters"]), seconds)


def command(folder: Path, *arguments: str) -> str:
    """Returns what a command prints, run in a folder; ends with its error if it fails."""
    path = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    return ended.stdout


if __name__ == "__main__":
    main()
