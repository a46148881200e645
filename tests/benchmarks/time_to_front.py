"""How long until the front is known: a plain Ray Tune script over a grid, the same with ASHA, and this project at its defaults.

    python -m tests.benchmarks.time_to_front run plain --to plain.csv        18 trainings in random order, one process each
    python -m tests.benchmarks.time_to_front run asha --to asha.csv
    python -m tests.benchmarks.time_to_front run sizes --to sizes.csv        6 trainings, cut to four sizes each
    python -m tests.benchmarks.time_to_front table plain.csv asha.csv sizes.csv

The plain script is what a careful person writes: HF Trainer, PEFT's tuners, Ray Tune with MLflow's callback, the rows and the
settings of the sweep. Each run writes a line for each adapter: seconds since its start, parameters, reported score. The table
says when each reached 95 % of the hypervolume (score above chance against the logarithm of parameters) of the first file.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.results.pareto import hypervolume

TASK, MODEL, CHANCE, SHARE = "toy/sentiment", "sentence-transformers/all-MiniLM-L6-v2", 50.0, 0.95
TRAINING = {"epochs": 3, "batch_size": 16, "max_length": 48, "train_examples": 700, "eval_examples": 300}
WORDS = {"q": "query", "k": "key", "v": "value", "o": "attention.output.dense"}
LEAST, MOST = 500, 200_000
"""Parameters between which the hypervolume is taken."""


def grid() -> list[dict[str, Any]]:
    craft = itertools.product([16, 32, 64], ["qv", "qkvo"], [1e-3, 3e-3])
    lora = itertools.product([1, 2, 8], ["qv"], [3e-3, 1e-2])
    points = [("craft", *one) for one in craft] + [("lora", *one) for one in lora]
    return [dict(zip(("method", "rank", "projections", "rate"), one, strict=True)) for one in points]


SWEEP = {
    "name": "sizes",
    "model": MODEL,
    "tasks": [TASK],
    "seeds": [0],
    "training": {**TRAINING, "search_examples": 100, "evaluate_every": "end"},
    "space": [
        {
            "method": "craft",
            "ranks": ["all", 64, 64],
            "projections": {"values": [["q", "v"], ["q", "k", "v", "o"]]},
            "learning_rate": {"values": [1e-3, 3e-3]},
            "sizes": 4,
        },
        {"method": "lora", "rank": 8, "learning_rate": {"values": [3e-3, 1e-2]}, "sizes": 4},
    ],
    "resources": {"cpu": 1},
}


def plain_trial(config: dict[str, Any]) -> None:
    """One training, as a script does it."""
    import numpy as np
    import torch
    from peft import LoraConfig, get_peft_model
    from ray import tune
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

    from craft import CraftConfig
    from craft.models.loading import resolve_model
    from craft.settings import DataSettings
    from craft.tasks import find_task
    from craft.tasks.splits import load_splits

    torch.set_num_threads(1)
    config = config["point"]
    folder = resolve_model(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sizes = {"train_examples": TRAINING["train_examples"], "eval_examples": TRAINING["eval_examples"]}
    splits = load_splits(find_task(TASK, DataSettings()), DataSettings(), protocol="honest", **sizes)  # type: ignore[arg-type]

    def rows(split: Any) -> list[dict[str, Any]]:
        tokens = tokenizer(list(split["text"]), truncation=True, max_length=TRAINING["max_length"])["input_ids"]
        return [{"input_ids": ids, "labels": label} for ids, label in zip(tokens, split["label"], strict=True)]

    base = AutoModelForSequenceClassification.from_pretrained(folder)
    modules = [WORDS[word] for word in config["projections"]]
    if config["method"] == "craft":
        ranks = ("all", config["rank"], config["rank"])
        adapter: Any = CraftConfig(task_type="SEQ_CLS", ranks=ranks, projections=tuple(config["projections"]))
    else:
        adapter = LoraConfig(task_type="SEQ_CLS", r=config["rank"], lora_alpha=config["rank"], target_modules=modules)
    model = get_peft_model(base, adapter)
    head = sum(weight.numel() for name, weight in model.named_parameters() if weight.requires_grad and "classifier" in name)
    parameters = model.get_nb_trainable_parameters()[0] - head
    scored = rows(next(iter(splits.reported.values())))

    def accuracy(found: Any) -> dict[str, float]:
        return {"accuracy": 100 * float((np.argmax(found.predictions, axis=1) == found.label_ids).mean())}

    class Report(TrainerCallback):
        def on_evaluate(self, _args: Any, state: Any, _control: Any, metrics: dict[str, float], **_more: Any) -> None:
            done = {"done": state.global_step >= state.max_steps}
            tune.report({"score": metrics["eval_accuracy"], "parameters": parameters, "epoch": round(state.epoch), **done})

    with tempfile.TemporaryDirectory() as place:
        Trainer(
            model=model,
            args=TrainingArguments(
                place,
                num_train_epochs=TRAINING["epochs"],
                per_device_train_batch_size=TRAINING["batch_size"],
                per_device_eval_batch_size=64,
                learning_rate=config["rate"],
                warmup_ratio=0.06,
                eval_strategy="epoch",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=rows(splits.train),
            eval_dataset=scored,
            processing_class=tokenizer,
            compute_metrics=accuracy,
            callbacks=[Report()],
        ).train()


def run_plain(asha: bool) -> Iterator[list[float]]:
    """Rows of the script's trials that came to their end."""
    import ray
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.tune.schedulers import ASHAScheduler

    began, points = time.time(), grid()
    random.Random(0).shuffle(points)
    found: list[list[float]] = []

    class Ends(tune.Callback):
        def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict[str, Any], **_more: Any) -> None:
            if result["epoch"] >= TRAINING["epochs"]:
                found.append([time.time() - began, result["parameters"], result["score"]])

    with tempfile.TemporaryDirectory() as place:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        scheduler = ASHAScheduler("epoch", "score", "max", max_t=3, grace_period=1, reduction_factor=3) if asha else None
        mlflow = MLflowLoggerCallback(f"sqlite:///{place}/mlflow.db", experiment_name="plain")
        tune.Tuner(
            tune.with_resources(plain_trial, {"cpu": 1}),
            param_space={"point": tune.grid_search(points)},
            tune_config=tune.TuneConfig(scheduler=scheduler),
            run_config=tune.RunConfig(storage_path=place, callbacks=[Ends(), mlflow], verbose=0),
        ).fit()
        ray.shutdown()
    yield from found


def run_sizes() -> Iterator[list[float]]:
    """Rows of the sweep's outputs, by the times in its journal."""
    began = time.time()
    with tempfile.TemporaryDirectory() as place:
        file, runs = Path(place, "sizes.yaml"), Path(place, "runs")
        file.write_text(json.dumps(SWEEP))
        flags = ["--storage", str(runs), "--tracking-uri", f"sqlite:///{place}/mlflow.db", "--cpus", "2", "--quiet"]
        subprocess.run([sys.executable, "-m", "orchestrator.run", str(file), *flags], check=True)
        for line in Path(runs, "sizes", "journal.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event.get("kind") == "trial_ended":
                row = event["row"]
                yield [event["time"] / 1000 - began, row["trainable_parameters"], row["score"]]


def volume(rows: Sequence[Sequence[float]]) -> float:
    """Score above chance against the logarithm of parameters."""
    points = [[score, math.log(max(size, LEAST))] for _, size, score in rows]
    return hypervolume(points, ["maximize", "minimize"], [CHANCE, math.log(MOST)])


def seconds_until(rows: Sequence[Sequence[float]], wanted: float) -> float:
    """When the rows together first have so much volume; infinity if they never do."""
    ordered = sorted(rows)
    return next((row[0] for at, row in enumerate(ordered, 1) if volume(ordered[:at]) >= wanted), math.inf)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run, table = commands.add_parser("run"), commands.add_parser("table")
    run.add_argument("which", choices=("plain", "asha", "sizes"))
    run.add_argument("--to", type=Path, required=True)
    table.add_argument("files", type=Path, nargs="+")
    given = parser.parse_args()
    if given.command == "run":
        began = time.time()
        rows = list(run_sizes() if given.which == "sizes" else run_plain(given.which == "asha"))
        with given.to.open("w", newline="") as out:
            csv.writer(out).writerows([*rows, [time.time() - began, MOST, CHANCE]])  # the end
        return
    files = {file.stem: [[float(cell) for cell in row] for row in csv.reader(file.open())] for file in given.files}
    wanted = SHARE * volume(next(iter(files.values())))
    print("| run | adapters | 95 % of the volume after (s) | all after (s) | its volume |\n| --- | --- | --- | --- | --- |")
    for name, rows in files.items():
        numbers = f"{seconds_until(rows, wanted):.0f} | {rows[-1][0]:.0f} | {volume(rows) / wanted * SHARE:.2f}"
        print(f"| {name} | {len(rows) - 1} | {numbers} |")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
