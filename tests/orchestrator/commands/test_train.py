"""`craft-sweeps train`: the one training of a sweep file, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.orchestrator.conftest import Cli

SWEEP = """\
name: one
model: MODEL
tasks: [custom/mine]
data: {custom: {mine: {train: mine.csv, text: body, label: way}}}
training: {epochs: 1, batch_size: 8, train_examples: 24, eval_examples: 16, max_length: 16}
space: [{method: craft, ranks: [all, 8, 8], sizes: [60]}]
"""


@pytest.fixture
def file(tiny_bert: str, here: Path) -> str:
    rows = [f"{word} number {n},{label}" for n in range(30) for word, label in (("good thing", "up"), ("bad thing", "down"))]
    (here / "mine.csv").write_text("\n".join(["body,way", *rows]))
    (here / "sweep.yaml").write_text(SWEEP.replace("MODEL", tiny_bert))
    return "sweep.yaml"


def test_a_training_from_a_users_csv_to_an_adapter_that_loads_as_printed(file: str, cli: Cli) -> None:
    screen = cli("train", file, "--to", "out")
    assert "274 adapter parameters, 66 in the head" in screen.err  # 2 (3² + 8² + 8²)
    assert "search score" in screen.err
    assert "cut to " in screen.out
    assert json.loads(Path("out/adapter/run.json").read_text())["labels"] == ["down", "up"]
    assert Path("out/cuts/60/adapter/adapter_model.safetensors").is_file()
    namespace: dict[str, Any] = {}
    exec("\n".join(line.strip() for line in screen.out.splitlines() if line.startswith("  ")), namespace)
    text = namespace["tokenizer"](["your text"], return_tensors="pt")
    assert namespace["model"](**text).logits.shape == (1, 2)

    assert "another run's adapter" in cli("train", file, "--to", "out", "--set", "seeds=[1]", status=2).err
    assert "continuing from" in cli("train", file, "--to", "out", "--resume").err

    lora = ["--set", "space=[{method: lora, rank: 2}]"]
    assert "has another method (craft)" in cli("train", file, "--to", "next", *lora, "--warm-start", "out", status=1).err


@pytest.mark.parametrize(
    ("flags", "status", "sentence"),
    [
        (["--set", "seeds=[0, 1]"], 2, "the file has 2 trainings"),
        (["--set", "training.bach_size=3"], 2, "Did you mean 'batch_size'?"),
        (["--warm-start", "nowhere"], 2, "no adapter of this project"),
        (["--set", "space=[{method: lora, learning_rate: 1e30, max_grad_norm: 0}]", "--to", "out"], 1, "diverged"),
    ],
)
def test_a_mistake_is_a_sentence(flags: list[str], status: int, sentence: str, file: str, cli: Cli) -> None:
    message = cli("train", file, *flags, status=status).err
    assert sentence in message
    assert "Traceback" not in message
