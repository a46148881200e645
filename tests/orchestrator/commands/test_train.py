"""`craft-sweeps train`: the one training of a sweep file, in this process; `energy`, against plain numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2Model

from craft.results import RunFailed
from tests.orchestrator.conftest import Cli
from tests.orchestrator.plans import config_alone

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
    config_alone(here / "weightless")
    return "sweep.yaml"


def test_a_training_from_a_users_csv_to_an_adapter_that_loads_as_printed(
    file: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    def diverge(*_: Any) -> None:
        raise RunFailed("training diverged")

    monkeypatch.setattr("craft.trainer.cuts.recover", diverge)
    assert "a cut failed: training diverged" in cli("train", file, "--to", "whole").err

    lora = ["--set", "space=[{method: lora, rank: 2}]"]
    assert "has another method (craft)" in cli("train", file, "--to", "next", *lora, "--warm-start", "out", status=1).err


@pytest.mark.parametrize(
    ("flags", "status", "sentence"),
    [
        (["--set", "seeds=[0, 1]"], 2, "the file has 2 trainings"),
        (["--set", "training.bach_size=3"], 2, "Did you mean 'batch_size'?"),
        (["--warm-start", "nowhere"], 2, "no adapter of this project"),
        (["--set", "model=weightless", "--to", "out"], 1, "the run failed: "),
        (["--set", "space=[{method: lora, learning_rate: 1e30, max_grad_norm: 0}]", "--to", "out"], 1, "diverged"),
    ],
)
def test_a_mistake_is_a_sentence(flags: list[str], status: int, sentence: str, file: str, cli: Cli) -> None:
    message = cli("train", file, *flags, status=status).err
    assert sentence in message
    assert "Traceback" not in message


@pytest.fixture
def gpt2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GPT2Model:
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "cache"))
    torch.manual_seed(0)
    model = GPT2Model(GPT2Config(n_layer=3, n_embd=24, n_head=2, vocab_size=40, n_positions=16))
    model.save_pretrained(tmp_path / "model")
    return model


def share(stack: np.ndarray, ranks: tuple[int, int, int]) -> float:
    """||W x1 U1^T x2 U2^T x3 U3^T||^2 / ||W||^2 by numpy's SVD of each unfolding."""
    core = stack
    for mode, rank in enumerate(ranks):
        unfolded = np.moveaxis(stack, mode, 0).reshape(stack.shape[mode], -1)
        u = np.linalg.svd(unfolded, full_matrices=False)[0][:, :rank]
        core = np.moveaxis(np.tensordot(u.T, core, axes=(1, mode)), 0, mode)
    return float(np.square(core).sum() / np.square(stack).sum())


def test_the_share_is_that_of_numpys_decomposition(gpt2: GPT2Model, tmp_path: Path, cli: Cli) -> None:
    call = ["energy", str(tmp_path / "model"), "--ranks", "all,8,8", "--ranks", "2,24,12", "--json"]
    rows = json.loads(cli(*call).out)
    fused = np.stack([block.attn.c_attn.weight.detach().numpy() for block in gpt2.h]).astype(np.float64)
    stacks = {"q": np.swapaxes(fused[:, :, :24], 1, 2), "v": np.swapaxes(fused[:, :, 48:], 1, 2)}
    expected = [(name, ranks) for name in stacks for ranks in [(3, 8, 8), (2, 24, 12)]]
    assert [(row["projection"], tuple(row["ranks"])) for row in rows] == expected
    for row, (name, ranks) in zip(rows, expected, strict=True):
        assert row["parameters"] == sum(rank**2 for rank in ranks)
        assert row["energy_kept"] == pytest.approx(share(stacks[name], ranks), abs=1e-5)
    assert f"{share(stacks['v'], (2, 24, 12)):.1%}" in cli(*call[:-1]).out


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("model", ["--ranks", "4,8,8"], "3 stacked layers"),
        ("model", ["--projections", "gate"], "has no projection 'gate'"),
        ("nothing", [], "does not exist"),
        ("model", ["--device", "cuda"], "--device 'cuda': torch cannot use it here"),
    ],
)
def test_what_cannot_be_had_is_said(
    gpt2: GPT2Model, tmp_path: Path, cli: Cli, model: str, arguments: list[str], message: str
) -> None:
    assert message in cli("energy", str(tmp_path / model), *arguments, status=2).err
    assert not (tmp_path / "cache").exists()
