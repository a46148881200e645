"""From the first command to the answer: a sweep until answered, with three and five seeds, and a plain Ray Tune script.

    python -m tests.benchmarks.whole FILE --label rating

All have the same training and reported rows, in an order drawn by a seed. The sweep has the head alone, CRAFT, LoRA with a cut,
(IA)³ and full fine-tuning at their methods' own rates; five seeds continue the sweep of three. The script trains LoRA, (IA)³
and full fine-tuning at four rates each with one seed, and takes the smallest within a point of the best by the reported rows.
What each takes is scored on held rows. "Below the best" is about the means there of three seeds of the sweep; for the script,
about its one adapter.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from craft.tasks.files import read_rows
from orchestrator import open_sweep
from orchestrator.suggest.facts import columns_of
from orchestrator.sweepfile.settings import Enough
from tests.benchmarks.suggested import (
    BATCH,
    LENGTH,
    MODEL,
    Part,
    command,
    fit,
    lora,
    part_of,
    plain,
    score_model,
    score_taken,
    write_rows,
)

EPOCHS, WITHIN, HELD_SEEDS = 4, Enough().within, (0, 1, 2)
SPACE: list[dict[str, Any]] = [
    {"method": "head"},
    {"method": "craft", "ranks": ["all", 64, 64], "projections": ["q", "v"]},
    {"method": "lora", "rank": 8, "projections": ["q", "v"], "sizes": 2},
    {"method": "ia3"},
    {"method": "full"},
]
GRID: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "LoRA r8": (lora(8, ["query", "value"]), (1e-4, 3e-4, 1e-3, 3e-3)),
    "(IA)³": ({"peft_type": "IA3"}, (1e-3, 3e-3, 1e-2, 3e-2)),
    "Full fine-tuning": ({}, (1e-5, 3e-5, 1e-4, 3e-4)),
}
RUNS: tuple[tuple[str, str, int, list[str]], ...] = (
    ("until answered", "until", 1, ["--until-answered"]),
    ("three seeds", "fixed", 3, []),
    ("five seeds", "fixed", 3, ["--resume", "--set", "seeds=[0, 1, 2, 3, 4]"]),
)
"""Title, name of the sweep, seeds of its file, and options of `run`."""


class Line(NamedTuple):
    """What one of them costs, and takes."""

    title: str
    seconds: float
    trainings: int
    label: str
    parameters: int
    score: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--label", required=True)
    parser.add_argument("--rows", nargs=3, type=int, default=[400, 500, 1000], help="training, reported and held rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--script", type=Path, help="the script alone, in the folder of the two files")
    options = parser.parse_args()
    if options.script:
        search(options.script, options.label)
        return
    rows = read_rows(options.file)
    task = columns_of(rows, options.label, ())
    order = iter(random.Random(options.seed).sample(range(len(rows)), len(rows)))
    mine, reported, held = ([next(order) for _ in range(many)] for many in options.rows)
    on_held, lines = part_of(rows, held, task), list[Line]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, numbers in (("mine", mine), ("reported", reported)):
            write_rows(folder / f"{name}.csv", rows, [*task["text"], options.label], numbers)
        for title, name, seeds, arguments in RUNS:
            (folder / f"{name}.yaml").write_text(sweep_of(name, task, seeds), encoding="utf-8")
            lines.append(run(folder, title, name, arguments, lines, on_held))
        began = time.perf_counter()
        script = ["-m", "tests.benchmarks.whole", options.file, "--label", options.label, "--script", str(folder)]
        subprocess.run([sys.executable, *script], check=True, stdout=sys.stderr)
        seconds = time.perf_counter() - began
        truths = held_means(folder, on_held)
        best = max(truths.values())
        print("| | seconds | trainings | takes | parameters | on held rows | below the best |\n" + "| --- " * 7 + "|")
        lines.append(of_script(folder, seconds, on_held))
        for title, seconds, trainings, label, size, score in lines:
            behind = best - truths.get(label, score)
            print(f"| {title} | {seconds:.0f} | {trainings} | {label} | {size:,} | {score:.1f} | {behind:.1f} |")


def sweep_of(name: str, task: dict[str, Any], seeds: int) -> str:
    data = {"train": "mine.csv", "validation": "reported.csv", **task}
    training = {"epochs": EPOCHS, "batch_size": BATCH, "max_length": LENGTH, "evaluate_every": "end", "group_by_length": True}
    settings = {"name": name, "model": MODEL, "tasks": ["custom/mine"], "data": {"custom": {"mine": data}}}
    return yaml.safe_dump(settings | {"seeds": [*range(seeds)], "training": training, "space": SPACE, "resources": {"cpu": 1}})


def run(folder: Path, title: str, name: str, arguments: list[str], earlier: list[Line], held: Part) -> Line:
    """Runs a sweep, takes its answer and scores that; a continued sweep has the seconds of the line before, too."""
    from craft import load_adapter

    began = time.perf_counter()
    command(folder, "run", f"{name}.yaml", *arguments)
    seconds = time.perf_counter() - began + (earlier[-1].seconds if "--resume" in arguments else 0)
    result, to = open_sweep(folder / "runs" / name), folder / f"taken {title}"
    print(f"{title}: {seconds:.0f} s. {result.answer.text}", flush=True)
    taken = json.loads(command(folder, "take", name, "--to", str(to), "--json"))
    trainings = sum(not entry.trial.is_cut for entry in result.record.state.requested if entry.result is not None)
    score = score_taken(*load_adapter(taken["adapters"][0]["path"]), held)
    return Line(title, seconds, trainings, taken["label"], int(taken["trainable_parameters"]), score)


def held_means(folder: Path, held: Part) -> dict[str, float]:
    """Returns the means over HELD_SEEDS on the held rows, by the labels of the sweep with fixed seeds."""
    result, means = open_sweep(folder / "runs" / "fixed"), dict[str, float]()
    for choice in map(result.pick, result.front.configuration):
        scores = [score_taken(*choice.load(seed=seed), held) for seed in HELD_SEEDS]
        means[choice.label] = float(np.mean(scores))
        print(f"held rows: {choice.label}: {np.round(scores, 1)}", flush=True)
    return means


def search(folder: Path, label: str) -> None:
    """Runs the script: a training on each CPU under Ray Tune; writes what it takes."""
    from ray import tune
    from safetensors.torch import save_file

    read = [read_rows(folder / f"{name}.csv") for name in ("mine", "reported")]
    task = columns_of(read[0], label, ())
    mine, reported = (part_of(rows, range(len(rows)), task) for rows in read)

    def trial(config: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(1)
        name, rate = config["pair"]
        model, tokenizer, size = plain(GRID[name][0], len(mine.names), 0)
        fit(model, tokenizer, rate, mine, EPOCHS)
        save_file({key: weight.detach() for key, weight in model.named_parameters() if weight.requires_grad},
                  folder / f"{name} {rate:g}")  # fmt: skip
        score = score_model(model, tokenizer, reported)
        (folder / f"script {name} {rate:g}.json").write_text(json.dumps([score, size, [name, rate]]), encoding="utf-8")
        tune.report({"score": score})

    pairs = [(name, rate) for name, (_, rates) in GRID.items() for rate in rates]
    tune.Tuner(tune.with_resources(trial, {"cpu": 1}), param_space={"pair": tune.grid_search(pairs)}).fit()
    found = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("script *.json")]
    best = max(score for score, _, _ in found)
    _, size, (name, rate) = min((row for row in found if row[0] >= best - WITHIN), key=lambda row: (row[1], -row[0]))
    taken = {"name": name, "rate": rate, "size": size, "trainings": len(found), "found": found}
    (folder / "taken.json").write_text(json.dumps(taken), encoding="utf-8")


def of_script(folder: Path, seconds: float, held: Part) -> Line:
    """Scores what the script took."""
    from safetensors.torch import load_file

    taken = json.loads((folder / "taken.json").read_text(encoding="utf-8"))
    print(f"script: {taken['found']}")
    model, tokenizer, _ = plain(GRID[taken["name"]][0], len(held.names), 0)
    model.load_state_dict(load_file(folder / f"{taken['name']} {taken['rate']:g}"), strict=False)
    score = score_model(model, tokenizer, held)
    return Line("Ray Tune script", seconds, taken["trainings"], f"{taken['name']} at {taken['rate']:g}", taken["size"], score)


if __name__ == "__main__":
    main()
