"""Scores of every method under each precision, beside the spread that seeds alone make in float32.

    python -m tests.benchmarks.precision
    python -m tests.benchmarks.precision --methods craft lora

A task that is learnt in seconds (four of five words are good, or four are bad: words of toy/sentiment), a tiny random BERT, the
parameters and learning rates of the methods' contract tests. float32 and bf16-mixed have three seeds, bfloat16 the first of
them. A precision that trains as well as float32 differs from it by no more than float32's own seeds differ from each other.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from craft.methods import METHODS
from craft.models.loading import MINILM, load_tokenizer
from craft.spec import RunSpec
from craft.tasks.toy_words import BAD, GOOD
from craft.trainer.training import train_run
from tests.benchmarks.timing import machine
from tests.craft.methods.test_contract import CASES

SEEDS = {"float32": (0, 1, 2), "bf16-mixed": (0, 1, 2), "bfloat16": (0,)}
TRAINING = {"epochs": 4, "batch_size": 32, "max_length": 16, "evaluate_every": 4, "select": "last", "eval_batch_size": 256}


def write_task(folder: Path) -> dict[str, Any]:
    """The two files of the task, and the data settings that name them."""
    draw = random.Random(0)
    for name, rows in (("train", 640), ("dev", 400)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for _ in range(rows):
                label = draw.choice(["bad", "good"])
                kinds = [label == "good"] * 4 + [label == "bad"]
                words = [draw.choice(GOOD[:8] if kind else BAD[:8]) for kind in kinds]
                draw.shuffle(words)
                writer.writerow([" ".join(words), label])
    files = {"train": str(folder / "train.csv"), "validation": str(folder / "dev.csv")}
    return {"custom": {"words": files | {"text": ["text"], "label": "label"}}}


def tiny_model(folder: Path) -> str:
    """A random BERT of 3 layers, hidden 32, as a local folder with MiniLM's tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(**shape, initializer_range=0.2)).save_pretrained(folder)
    load_tokenizer(MINILM).save_pretrained(folder)
    return str(folder)


def score(spec: RunSpec) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return train_run(spec, Path(folder)).metrics["score"]


def row(scores: dict[str, list[float]]) -> str:
    base, mixed, half = scores["float32"], scores["bf16-mixed"], scores["bfloat16"]
    seeds = [", ".join(f"{one:.1f}" for one in values) for values in (base, mixed)]
    means = [statistics.mean(values) for values in (base, mixed)]
    cells = [f"{mean:.1f} ({each})" for mean, each in zip(means, seeds, strict=True)]
    return " | ".join([*cells, f"{means[1] - means[0]:+.1f}", f"{max(base) - min(base):.1f}", f"{half[0]:.1f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", help="all that need no GPU if absent")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run: dict[str, Any] = {"model": tiny_model(Path(folder)), "task": "custom/words", "data": write_task(Path(folder))}
        print(
            f"{machine()}\n\n| method | float32 (its seeds) | bf16-mixed | difference | float32's spread | bfloat16, seed 0 |"
        )
        print("| --- | --- | --- | --- | --- | --- |", flush=True)
        for name, case in CASES.items():
            if name not in (given.methods or METHODS):
                continue
            scores: dict[str, list[float]] = {}
            for precision, seeds in SEEDS.items():
                training = TRAINING | {"learning_rate": case.learning_rate, "precision": precision}
                one = run | {"method": name, "parameters": case.parameters, "training": training}
                scores[precision] = [score(RunSpec.model_validate(one | {"seed": seed})) for seed in seeds]
            print(f"| {METHODS[name].title} | {row(scores)} |", flush=True)


if __name__ == "__main__":
    main()
