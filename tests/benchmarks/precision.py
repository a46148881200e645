"""Scores of every method under each precision, beside the spread that seeds alone make in float32.

    python -m tests.benchmarks.precision                       every method on a tiny random model, three seeds
    python -m tests.benchmarks.precision --model MODEL --methods craft lora

toy/sentiment, accuracy of the reported split in percent. A precision that trains as well as float32 lies within the spread of
float32's own seeds. The tiny model takes the settings of the methods' contract tests, another model those of
`sweeps/baselines.yaml`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from craft.methods import METHODS
from craft.spec import RunSpec
from craft.trainer.training import train_run
from tests.benchmarks.timing import machine
from tests.craft.methods.test_contract import CASES

PRECISIONS = ("float32", "bf16-mixed", "bfloat16")
BASELINES = Path(__file__).parents[2] / "sweeps" / "baselines.yaml"
TRAINING = {"max_length": 32, "evaluate_every": 100, "select": "last", "eval_examples": 500}


def tiny_model(folder: Path) -> str:
    """A random BERT of 3 layers, hidden 32, as a local folder with MiniLM's tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    from craft.models.loading import MINILM, load_tokenizer

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(**shape, initializer_range=0.2)).save_pretrained(folder)
    load_tokenizer(MINILM).save_pretrained(folder)
    return str(folder)


def settings(tiny: bool) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Method -> its parameters, its training settings."""
    if tiny:
        training = TRAINING | {"epochs": 6, "batch_size": 32, "train_examples": 480}
        return {
            name: (case.parameters, training | {"learning_rate": case.learning_rate})
            for name, case in CASES.items()
            if name in METHODS
        }
    training = TRAINING | {"epochs": 2, "batch_size": 16, "train_examples": 480, "head_learning_rate": 1e-2}
    found = {}
    for block in yaml.safe_load(BASELINES.read_text())["space"]:
        rate = float(block.pop("learning_rate"))
        found[block.pop("method")] = (block, training | {"learning_rate": rate})
    return found


def score(spec: Mapping[str, Any]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return 1.0 * train_run(RunSpec.model_validate(spec), Path(folder)).metrics["score"]


def row(scores: Mapping[str, list[float]]) -> str:
    means = {precision: statistics.mean(values) for precision, values in scores.items()}
    base = scores[PRECISIONS[0]]
    cells = [f"{means[precision]:.1f}" for precision in PRECISIONS]
    spread = max(base) - min(base)
    differences = [f"{means[one] - means['float32']:+.1f}" for one in PRECISIONS[1:]]
    return " | ".join([*cells, f"{spread:.1f}", *differences])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="hub id or folder; a tiny random model if absent")
    parser.add_argument("--methods", nargs="+", help="all that run without a GPU if absent")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = given.model or tiny_model(Path(folder))
        print(f"toy/sentiment, accuracy in percent, {given.seeds} seeds, {given.model or 'a tiny random BERT'}, {machine()}\n")
        print(
            "| method | float32 | bf16-mixed | bfloat16 | seeds' spread in float32 | bf16-mixed less float32 | bfloat16 less |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for name, (parameters, training) in settings(not given.model).items():
            if given.methods and name not in given.methods:
                continue
            run = {"model": model, "task": "toy/sentiment", "method": name, "parameters": parameters}
            scores = {
                precision: [
                    score(run | {"training": training | {"precision": precision}, "seed": seed}) for seed in range(given.seeds)
                ]
                for precision in PRECISIONS
            }
            print(f"| {METHODS[name].title} | {row(scores)} |", flush=True)


if __name__ == "__main__":
    main()
