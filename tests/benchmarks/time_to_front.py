"""How long until the front is known: a plain Ray Tune script over a grid, the same with ASHA, and this project's sizes.

    python -m tests.benchmarks.time_to_front run plain --task glue/sst2 --data DATA --to plain.csv    36 trainings, random order
    python -m tests.benchmarks.time_to_front run sizes --task glue/sst2 --data DATA --to sizes.csv    12 trainings, cut to sizes
    python -m tests.benchmarks.time_to_front table --task glue/sst2 plain.csv sizes.csv

    python -m tests.benchmarks.time_to_front run sizes --task recorded --data DATA --to sizes.csv
    python -m tests.benchmarks.time_to_front table --task recorded recorded sizes.csv

The plain script is what a careful person writes: HF Trainer, PEFT's tuners, Ray Tune with MLflow's callback, one process for
each trial, with the rows, the settings and the start of the head of the sweep. The sweep's trainings run one after another in
one process, as a worker of the project runs them. Both use one thread, and count the CPU seconds of their process, imports
included, so other work on the machine matters little. `run` writes a line for each evaluation of an adapter: these seconds,
number of the training, its epoch, parameters, reported score, what it is. A plain run that is broken off leaves a smaller grid.

`table` says when two workers have 95 % of the hypervolume (score above chance against the logarithm of parameters) of the plain
grid: the grid in 1,000 random orders, without a scheduler and with ASHA (grace 1 epoch, factor 3), with median and quartiles;
the sweep in its own order. The time of the drivers is left out on both sides.

The task `recorded` is SST-2 with the settings of sweeps/recorded_grid.yaml, whose 270 trials are on record with their seconds.
48 of them are the plain grid, each with the seconds of the imports added. The sweep's trainings take the recorded seconds of a
step and of a scored example.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import itertools
import json
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.benchmarks.hypervolume import hypervolume
from tests.benchmarks.replay.curves import read_record

MODEL, SHARE, WORKERS = "sentence-transformers/all-MiniLM-L6-v2", 0.95, 2
CHANCE = {"glue/stsb": 0.0}
"""Score of a guess; 50 for the other tasks."""
TRAINING = {"epochs": 3, "batch_size": 16, "max_length": 48, "eval_examples": 240}
EXAMPLES = {"toy/sentiment": 700, "glue/sst2": 240, "glue/stsb": 240}
RATES = [1e-3, 3e-3, 1e-2]
RECORDED, RECORD = "recorded", Path("tests/benchmarks/recorded_grid.csv.gz")
SEARCH, REPORTED = 400, 872
"""Examples of the recorded trials' search split, scored four times, and of their reported split, scored once."""
WORDS = {"q": "query", "k": "key", "v": "value", "o": "attention.output.dense"}
IMPORTS = 7.0
"""CPU seconds of a plain trial's imports (torch, transformers, peft), for recorded trials, whose workers were warm."""
LEAST, MOST = 500, 200_000
"""Parameters between which the hypervolume is taken."""

Row = tuple[float, int, int, int, float, str]
"""Seconds since the training's process began with it, training, epoch, parameters, score, name."""


def grid() -> list[dict[str, Any]]:
    craft = itertools.product(["craft"], [16, 32, 64], ["qv", "qkvo"], RATES)
    lora = itertools.product(["lora"], [1, 2, 8], ["qv", "qkvo"], RATES)
    return [dict(zip(("method", "rank", "projections", "rate"), one, strict=True)) for one in [*craft, *lora]]


def sweep(task: str, data: str | None, head_start: str) -> dict[str, Any]:
    """The largest ranks of the grid, cut to the others; the middle rate first."""
    projections = {"values": [["q", "v"], ["q", "k", "v", "o"]]}
    craft = {"method": "craft", "ranks": ["all", 64, 64], "projections": projections, "sizes": [328, 1096, 4168]}
    lora = {"method": "lora", "rank": 8, "projections": projections, "sizes": [9216, 18432, 36864]}
    rates: list[Any] = [RATES[1], {"values": [RATES[0], RATES[2]]}]
    if task == RECORDED:
        task, training = "glue/sst2", yaml.safe_load(Path("sweeps/recorded_grid.yaml").read_text(encoding="utf-8"))["training"]
    else:
        training = {**TRAINING, "train_examples": EXAMPLES[task], "search_examples": 60}
    return {
        "name": "sizes",
        "model": MODEL,
        "tasks": [task],
        "seeds": [0],
        "training": training | {"evaluate_every": "end", "head_start": head_start},
        "space": [block | {"learning_rate": rate} for rate in rates for block in (craft, lora)],
        "resources": {"cpu": 1},
    } | ({"data": {"root": data}} if data else {})


def recorded() -> tuple[list[Row], dict[str, tuple[float, float]]]:
    """The rows of the recorded grid, and by name the seconds of its trainings' steps and of a scored example."""
    rows: list[Row] = []
    costs = {}
    wanted = {("craft", rank) for rank in (8, 16, 32, 64)} | {("lora", rank) for rank in (1, 2, 4, 8)}
    for curve in read_record(RECORD).curves:
        known = curve.parameters
        rank, projections = int(known.get("r2") or known["rank"]), known["projections"].replace(",", "")
        rate = known["learning_rate"]
        if known.get("dropout") or projections == "vo" or rate not in RATES or (known["method"], rank) not in wanted:
            continue
        steps = 100 * curve.counts["step_seconds"]
        example = (curve.seconds - steps) / (4 * SEARCH + REPORTED)
        name = f"{known['method']} {rank} {projections} {rate:g}"
        costs[name] = steps, example
        number, parameters = len(costs), int(curve.counts["trainable_parameters"])
        epochs = dict(curve.evaluations)
        rows.append((IMPORTS + steps / 2 + example * REPORTED, number, 1, parameters, epochs[1.0], name))
        rows.append((IMPORTS + steps + 2 * example * REPORTED, number, TRAINING["epochs"], parameters, curve.score, name))
    return rows, costs


def plain_trial(config: dict[str, Any]) -> None:
    """One training, as a script does it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from ray import tune
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

    from craft import CraftConfig
    from craft.models.loading import resolve_model
    from craft.tasks import find_task
    from craft.tasks.splits import load_splits

    torch.set_num_threads(1)
    torch.manual_seed(0)
    task, settings, config = find_task(config["task"], config["data"]), config["data"], config["point"]
    folder = resolve_model(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sizes = {"train_examples": EXAMPLES[task.name], "eval_examples": TRAINING["eval_examples"]}
    splits = load_splits(task, settings, protocol="honest", **sizes)  # type: ignore[arg-type]

    def rows(split: Any) -> list[dict[str, Any]]:
        texts = [list(split[column]) for column in split.column_names if column not in ("label", "idx")]
        tokens = tokenizer(*texts, truncation=True, max_length=TRAINING["max_length"])["input_ids"]
        return [{"input_ids": ids, "labels": label} for ids, label in zip(tokens, split["label"], strict=True)]

    base = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=len(task.labels) or 1)
    train, scored = rows(splits.train), rows(next(iter(splits.reported.values())))
    probe(base, train, tokenizer)
    modules = [WORDS[word] for word in config["projections"]]
    if config["method"] == "craft":
        ranks = ("all", config["rank"], config["rank"])
        adapter: Any = CraftConfig(task_type="SEQ_CLS", ranks=ranks, projections=tuple(config["projections"]))
    else:
        adapter = LoraConfig(task_type="SEQ_CLS", r=config["rank"], lora_alpha=config["rank"], target_modules=modules)
    model = get_peft_model(base, adapter)
    head = sum(weight.numel() for name, weight in model.named_parameters() if weight.requires_grad and "classifier" in name)
    parameters = model.get_nb_trainable_parameters()[0] - head

    def score(found: Any) -> dict[str, float]:
        if not task.labels:
            return {"score": 100 * float(np.corrcoef(found.predictions[:, 0], found.label_ids)[0, 1])}
        return {"score": 100 * float((np.argmax(found.predictions, axis=1) == found.label_ids).mean())}

    class Report(TrainerCallback):
        def on_evaluate(self, _args: Any, state: Any, _control: Any, metrics: dict[str, float], **_more: Any) -> None:
            known = {"score": metrics["eval_score"], "parameters": parameters, "epoch": round(state.epoch)}
            tune.report(known | {"seconds": time.process_time()})

    with tempfile.TemporaryDirectory() as place:
        Trainer(
            model=model,
            args=TrainingArguments(
                place,
                num_train_epochs=TRAINING["epochs"],
                per_device_train_batch_size=TRAINING["batch_size"],
                per_device_eval_batch_size=64,
                learning_rate=config["rate"],
                warmup_steps=0.06,
                eval_strategy="epoch",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=train,
            eval_dataset=scored,
            processing_class=tokenizer,
            compute_metrics=score,
            callbacks=[Report()],
        ).train()


def probe(model: Any, rows: list[dict[str, Any]], tokenizer: Any) -> None:
    """Fits the head on the frozen model, as the sweep does."""
    import torch

    from craft.trainer.head_start import fit_linear

    kept, features = model.classifier, []
    model.eval()
    with torch.no_grad():
        model.classifier = torch.nn.Identity()
        for at in range(0, len(rows), 64):
            batch = tokenizer.pad([{"input_ids": row["input_ids"]} for row in rows[at : at + 64]], return_tensors="pt")
            features.append(model(**batch).logits.numpy())
        model.classifier = kept
        kind = "classification" if len(kept.weight) > 1 else "regression"
        labels = np.array([row["labels"] for row in rows])
        weight, bias = fit_linear(np.concatenate(features), labels, kind, len(kept.weight), bias=True)
        kept.weight.copy_(torch.from_numpy(weight))
        kept.bias.copy_(torch.from_numpy(bias))


def run_plain(task: str, data: str | None, to: Path) -> None:
    """The script over the grid. Tune pickles its callbacks, so the callback opens the file for each row."""
    import ray
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    from craft.settings import DataSettings

    points = grid()
    random.Random(0).shuffle(points)

    class Ends(tune.Callback):
        def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict[str, Any], **_more: Any) -> None:
            point = trial.config["point"]
            name = "{method} {rank} {projections} {rate:g}".format(**point)
            numbers = (result[one] for one in ("epoch", "parameters", "score"))
            with to.open("a", newline="") as file:
                csv.writer(file).writerow((result["seconds"], points.index(point), *numbers, name))

    with tempfile.TemporaryDirectory() as place:
        ray.init("local", num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
        mlflow = MLflowLoggerCallback(f"sqlite:///{place}/mlflow.db", experiment_name="plain")
        settings = DataSettings.model_validate({"root": data})
        tune.Tuner(
            tune.with_resources(plain_trial, {"cpu": 1}),
            param_space={"point": tune.grid_search(points), "task": task, "data": settings},
            run_config=tune.RunConfig(storage_path=place, callbacks=[Ends(), mlflow], verbose=0),
        ).fit()
        ray.shutdown()


def run_sizes(task: str, data: str | None, write: Callable[[Row], object], head_start: str = "probe") -> None:
    """The sweep's trainings in their order, each with its sizes."""
    from orchestrator.plan.plan import make_plan
    from orchestrator.sweepfile.load import load_sweep
    from orchestrator.worker.guards import begin_with
    from orchestrator.worker.run_job import run_job

    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "sizes.yaml")
        file.write_text(json.dumps(sweep(task, data, head_start)))
        plan, before = make_plan(load_sweep(file)), 0.0
        for number, job in enumerate(plan.jobs):
            folder = Path(place, job.key)
            folder.mkdir()
            begin_with(1)
            training, *cuts = run_job(job, folder, lambda _progress: None)
            seconds, before = time.process_time() - before, time.process_time()
            run = job.training.run
            known = run.parameters
            rank = known["ranks"][1] if run.method == "craft" else known["rank"]
            name = f"{run.method} {rank} {''.join(known['projections'])} {run.training.learning_rate:g}"
            for result in (outcome.result for outcome in (*cuts, training)):
                numbers = int(result.counts["trainable_parameters"]), result.metrics["score"]
                write((seconds, number, TRAINING["epochs"], *numbers, name))


def by_training(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """The rows of each training that came to its end."""
    whole = {row[1] for row in rows if row[2] == TRAINING["epochs"]}
    return {one: [row for row in rows if row[1] == one] for one in sorted(whole)}


def replay(trainings: Mapping[int, list[Row]], order: Sequence[int], asha: bool = False, warm: float = 0.0) -> list[Row]:
    """What trainings in this order give, and when; with `asha` two thirds of them end after the first epoch.

    Args:
        warm: what the first training of a worker takes on top; its process is kept.
    """
    waiting, rung, out = list(order)[::-1], [], []
    events: list[tuple[float, int, float]] = []  # when, training, when its worker began with it

    def begin(now: float) -> None:
        if waiting:
            training = waiting.pop()
            heapq.heappush(events, (now + trainings[training][0][0], training, now))

    for _ in range(WORKERS):
        begin(warm)
    while events:
        now, training, began = heapq.heappop(events)
        rows = trainings[training]
        if now == began + rows[-1][0]:
            out += [(now, *row[1:]) for row in rows if row[2] == TRAINING["epochs"]]
            begin(now)
            continue
        score = rows[0][4]
        if asha and rung and score < np.percentile(rung, 200 / 3):
            begin(now)
        else:
            heapq.heappush(events, (began + rows[-1][0], training, began))
        rung.append(score)
    return out


def volume(rows: Sequence[Row], chance: float) -> float:
    """Score above chance against the logarithm of parameters."""
    points = [[row[4], math.log(max(row[3], LEAST))] for row in rows]
    return hypervolume(points, ["maximize", "minimize"], [chance, math.log(MOST)])


def seconds_until(rows: Sequence[Row], wanted: float, chance: float) -> float:
    """When the rows together first have so much volume; infinity if they never do."""
    ordered = sorted(rows)
    enough = (row[0] for at, row in enumerate(ordered, 1) if volume(ordered[:at], chance) >= wanted)
    return next(enough, math.inf)


def print_table(plain: Sequence[Row], ours: Mapping[int, list[Row]], imports: float, chance: float, orders: int = 1000) -> None:
    """
    Args:
        ours: the rows of the sweep's trainings, whose seconds leave out the `imports`.
    """
    grid = by_training(plain)
    wanted = SHARE * volume([row for rows in grid.values() for row in rows[-1:]], chance)
    print("| run | trainings | 95 % of the volume after (s) | all after (s) | volume |\n| --- | --- | --- | --- | --- |")

    def line(what: str, until: str, rows: Sequence[Row], trainings: int) -> None:
        until, reached = until.replace("inf", "never"), volume(rows, chance) / wanted * SHARE
        print(f"| {what} | {trainings} | {until} | {max(rows)[0]:.0f} | {reached:.2f} |")

    for what, asha in (("plain grid, random orders", False), ("the same with ASHA", True)):
        draw = random.Random(1)
        runs = [replay(grid, draw.sample([*grid], len(grid)), asha) for _ in range(orders)]
        times = sorted(seconds_until(rows, wanted, chance) for rows in runs)
        low, middle, high = (times[orders * part // 4] for part in (1, 2, 3))
        line(what, f"{middle:.0f} ({low:.0f} to {high:.0f})", runs[0], len(grid))
    whole = {one: rows[-1:] for one, rows in ours.items()}
    for what, trainings in (("sizes", ours), ("the whole adapters of sizes alone", whole)):
        rows = replay(trainings, [*trainings], warm=imports)
        line(what, f"{seconds_until(rows, wanted, chance):.0f}", rows, len(trainings))


def warm(rows: Sequence[Row]) -> tuple[dict[int, list[Row]], float]:
    """The sweep's trainings without the imports, which its first one holds, and the seconds of these."""
    ours = by_training(rows)
    imports = ours[0][0][0] - statistics.median(rows[0][0] for rows in list(ours.values())[1:])
    return ours | {0: [(row[0] - imports, *row[1:]) for row in ours[0]]}, imports


def with_recorded_seconds(rows: Sequence[Row], costs: Mapping[str, tuple[float, float]]) -> dict[int, list[Row]]:
    """The sweep's trainings with what their steps and scored examples took on record."""
    found = {}
    for training, of_it in by_training(rows).items():
        steps, example = costs[of_it[0][5]]
        seconds = steps + example * (SEARCH + REPORTED) * len(of_it)
        found[training] = [(seconds, *row[1:]) for row in of_it]
    return found


def _read(file: Path) -> list[Row]:
    with file.open(newline="") as lines:
        return [(float(a), int(b), int(c), int(float(d)), float(e), f) for a, b, c, d, e, f in csv.reader(lines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run, table = commands.add_parser("run"), commands.add_parser("table")
    run.add_argument("which", choices=("plain", "sizes"))
    run.add_argument("--data", help="folder with glue/TASK/train.parquet")
    run.add_argument("--head-start", default="probe", help="where the heads of the sweep start")
    run.add_argument("--to", type=Path, required=True)
    table.add_argument("files", type=Path, nargs=2, help="of the plain run (or `recorded`), and of sizes")
    for each in (run, table):
        each.add_argument("--task", choices=(*EXAMPLES, RECORDED), default="toy/sentiment")
    options = parser.parse_args()
    if options.command == "run":
        options.to.write_text("")
        if options.which == "plain":
            run_plain(options.task, options.data, options.to.resolve())
        else:
            with options.to.open("a", newline="", buffering=1) as out:
                run_sizes(options.task, options.data, csv.writer(out).writerow, options.head_start)
    elif options.task == RECORDED:
        plain, costs = recorded()
        print_table(plain, with_recorded_seconds(_read(options.files[1]), costs), IMPORTS, 50.0)
    else:
        print_table(_read(options.files[0]), *warm(_read(options.files[1])), CHANCE.get(options.task, 50.0))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
