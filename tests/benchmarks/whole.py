"""From the first command to the answer: a sweep until it is answered, with three and five seeds, and a plain Ray Tune script.

    python -m tests.benchmarks.whole FILE --label label

The file's rows are drawn by a seed: training rows, reported rows, and held ones that no contender has. The sweeps train each
method at its own rate. The script trains LoRA of two ranks and all weights at four rates each, once, and takes the smallest
whose reported score is within a point of the best. Every adapter is scored on the held rows; what is true of a configuration is
the mean of its adapters. An answer is right if no configuration is more than a point above it.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from craft.tasks.files import read_rows
from craft.tasks.rows import label_name
from orchestrator.review.past_sweep import read_folder
from orchestrator.suggest.facts import columns_of
from tests.benchmarks.suggested import MODEL, Part, command, score_model, train_plain, write_rows

SWEEP = """
name: mine
model: {model}
tasks: [custom/mine]
data: {{custom: {{mine: {{train: train.csv, validation: reported.csv, text: {text}, label: {label}, kind: {kind}}}}}}}
seeds: {seeds}
training: {{epochs: 3, batch_size: 16, max_length: 128}}
space:
  - {{method: head}}
  - {{method: lora, rank: 8, sizes: [9216]}}
  - {{method: craft, ranks: [all, 64, 64]}}
  - {{method: ia3}}
  - {{method: full}}
resources: {{cpu: 1}}
"""
RATES = {"r1": (3e-4, 1e-3, 3e-3, 1e-2), "r8": (3e-4, 1e-3, 3e-3, 1e-2), "full": (1e-5, 3e-5, 1e-4, 3e-4)}
RANKS = {"r1": 1, "r8": 8, "full": 0}
UNTIL = "until answered"
SEEDS = {UNTIL: [0], "three seeds": [0, 1, 2], "five seeds": [0, 1, 2, 3, 4]}


class Contender(NamedTuple):
    """What a contender says after its seconds: the id, label and parameters of its answer, and whether it is sure of it."""

    name: str
    seconds: float
    id: str
    label: str
    parameters: int
    sure: bool


class Rows(NamedTuple):
    """The rows of a task in three parts; `names` are the classes, none of numbers."""

    train: Part
    reported: Part
    held: Part
    names: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--label", required=True)
    parser.add_argument("--rows", type=int, nargs=3, default=[800, 500, 2000], help="training, reported and held rows")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = divide(options.file, options.label, options.rows, options.seed, folder)
        found, scores = tuned_by_hand(rows)
        contenders = [found]
        for name in SEEDS:
            contenders.append(swept(name, folder, ["--until-answered", "--hours", "2"] if name == UNTIL else []))
            add_scores(folder / name / "runs" / "mine", rows, scores)
        best = max(map(fmean, scores.values()))
        for each in contenders:
            behind = best - fmean(scores[each.id])
            verdict = ("right" if behind <= 1 else "wrong") if each.sure else "not decided"
            answer = f"{each.label} ({each.parameters:,})"
            print(f"{each.name:<15} {each.seconds:6.0f} s  {answer:<46} {behind:5.2f} behind  {verdict}")
        for id_, values in scores.items():
            print(f"    {id_:<12} {fmean(values):6.2f}, the mean of {len(values)}")


def divide(file: str, label: str, counts: Sequence[int], seed: int, folder: Path) -> Rows:
    """Draws the three parts, and writes the two that a sweep has with the file of the sweep."""
    table = read_rows(file)
    task = columns_of(table, label, ())
    scale = task.get("kind") == "regression"
    order = iter(random.Random(seed).sample(range(len(table)), sum(counts)))
    numbers = [[next(order) for _ in range(count)] for count in counts]
    names = [] if scale else sorted({str(label_name(table.column(label)[row])) for part in numbers for row in part})

    def part(places: Sequence[int]) -> Part:
        cells = [table.column(label)[row] for row in places]
        labels = [float(cell) if scale else names.index(str(label_name(cell))) for cell in cells]
        return Part([tuple(table.column(name)[row] for name in task["text"]) for row in places], labels)

    for name, places in zip(("train.csv", "reported.csv"), numbers, strict=False):
        write_rows(folder / name, table, [*task["text"], label], places)
    settings = {"text": json.dumps(task["text"]), "label": label, "kind": "regression" if scale else "classification"}
    for name, seeds in SEEDS.items():
        (folder / name).mkdir()
        text = SWEEP.format(model=MODEL, seeds=seeds, **settings)
        (folder / name / "mine.yaml").write_text(
            text.replace("train.csv", "../train.csv").replace("reported.csv", "../reported.csv")
        )
    train, reported, held = map(part, numbers)
    return Rows(train, reported, held, names)


def swept(name: str, folder: Path, options: Sequence[str]) -> Contender:
    """Runs a sweep as a user does, and reads its answer."""
    began = time.perf_counter()
    command(folder / name, "run", "mine.yaml", *options)
    seconds = time.perf_counter() - began
    answer = json.loads(command(folder / name, "front", "runs/mine", "--json"))["answer"]
    rows = {row.configuration: row for row in read_folder(folder / name / "runs" / "mine").summaries}
    size = int(rows[answer["configuration"]].value("trainable_parameters"))
    return Contender(name, seconds, answer["configuration"], answer["label"], size, answer["kind"] in ("enough", "head"))


def add_scores(sweep: Path, rows: Rows, scores: dict[str, list[float]]) -> None:
    """Adds the scores of a sweep's adapters on the held rows, by the id of their configuration."""
    from craft import load_adapter

    for entry in read_folder(sweep).entries:
        if entry.adapter is None:
            continue
        loaded: Any = load_adapter(sweep / entry.adapter)
        model, tokenizer = loaded
        held = rows.held
        if rows.names:  # the adapter has its own order of classes
            places = {name: place for place, name in model.config.id2label.items()}
            held = Part(held.texts, [places[rows.names[label]] for label in held.labels])
        scores.setdefault(entry.trial.configuration, []).append(score_model(model, tokenizer, held, len(rows.names)))


def tuned_by_hand(rows: Rows) -> tuple[Contender, dict[str, list[float]]]:
    """Runs the grid of the script under Ray Tune, a training on each core, and takes its answer."""
    from ray import tune

    def train(config: dict[str, Any]) -> dict[str, Any]:
        import torch

        torch.set_num_threads(1)
        script = {"r": RANKS[config["kind"]], "targets": ["query", "value"], "rate": config["rate"]}
        scores, parameters, _ = train_plain(script, rows.train, (rows.reported, rows.held), len(rows.names), 3.0, 0)
        return {"reported": scores[0], "held": scores[1], "parameters": parameters}

    began = time.perf_counter()
    grid = [{"kind": kind, "rate": rate} for kind, rates in RATES.items() for rate in rates]
    share, settings = tune.with_resources(train, {"cpu": 1}), tune.TuneConfig(reuse_actors=True)
    results = tune.Tuner(share, param_space=tune.grid_search(grid), tune_config=settings).fit()
    seconds = time.perf_counter() - began
    frame = results.get_dataframe().sort_values("reported")
    best = frame.groupby("config/kind").tail(1)
    chosen = best[best.reported >= best.reported.max() - 1].sort_values("parameters").iloc[0]
    label = f"{chosen['config/kind']} at {chosen['config/rate']:g}"
    return Contender("a script", seconds, "script", label, int(chosen.parameters), sure=True), {"script": [float(chosen.held)]}


if __name__ == "__main__":
    main()
