"""Scores of every method under each precision, beside the spread that seeds alone make in float32.

    python -m tests.benchmarks.precision
    python -m tests.benchmarks.precision --methods craft lora --layers 6

toy/sentiment, accuracy of the reported split in percent, on the first layers of MiniLM; parameters and learning rates are those
of `sweeps/baselines.yaml`. float32 and bf16-mixed have three seeds, bfloat16 the first of them. A precision that trains as
well as float32 differs from it by no more than float32's own seeds differ from each other.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import yaml

from craft.methods import METHODS
from craft.models.loading import MINILM, load_tokenizer, resolve_model
from craft.spec import RunSpec
from craft.trainer.training import train_run
from tests.benchmarks.timing import machine

BASELINES = Path(__file__).parents[2] / "sweeps" / "baselines.yaml"
SEEDS = {"float32": (0, 1, 2), "bf16-mixed": (0, 1, 2), "bfloat16": (0,)}
TRAINING = {"epochs": 3, "batch_size": 16, "max_length": 32, "train_examples": 320, "eval_examples": 300}
TRAINING |= {"evaluate_every": 3, "select": "last", "head_learning_rate": 1e-2}


def shortened(layers: int, folder: str) -> str:
    """MiniLM without its later layers, as a local folder."""
    from transformers import BertModel

    BertModel.from_pretrained(resolve_model(MINILM), num_hidden_layers=layers).save_pretrained(folder)
    load_tokenizer(MINILM).save_pretrained(folder)
    return folder


def score(spec: RunSpec) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return train_run(spec, Path(folder)).metrics["score"]


def row(scores: dict[str, list[float]]) -> str:
    base, mixed, half = scores["float32"], scores["bf16-mixed"], scores["bfloat16"]
    seeds = ", ".join(f"{one:.1f}" for one in base)
    more = statistics.mean(mixed) - statistics.mean(base)
    cells = [f"{statistics.mean(base):.1f} ({seeds})", f"{statistics.mean(mixed):.1f}", f"{more:+.1f}"]
    return " | ".join([*cells, f"{max(base) - min(base):.1f}", f"{half[0]:.1f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", help="those of the sweep file if absent")
    parser.add_argument("--layers", type=int, default=2, help="layers of MiniLM that are kept (default: 2)")
    given = parser.parse_args()
    blocks: list[dict[str, Any]] = yaml.safe_load(BASELINES.read_text())["space"]
    with tempfile.TemporaryDirectory() as folder:
        model = shortened(given.layers, folder)
        print(
            f"{machine()}\n\n| method | float32 (its seeds) | bf16-mixed | difference | float32's spread | bfloat16, seed 0 |"
        )
        print("| --- | --- | --- | --- | --- | --- |", flush=True)
        for block in blocks:
            name, rate = block.pop("method"), float(block.pop("learning_rate"))
            if given.methods and name not in given.methods:
                continue
            scores: dict[str, list[float]] = {}
            for precision, seeds in SEEDS.items():
                training = TRAINING | {"learning_rate": rate, "precision": precision}
                run = {"model": model, "task": "toy/sentiment", "method": name, "parameters": block, "training": training}
                scores[precision] = [score(RunSpec.model_validate(run | {"seed": seed})) for seed in seeds]
            print(f"| {METHODS[name].title} | {row(scores)} |", flush=True)


if __name__ == "__main__":
    main()
