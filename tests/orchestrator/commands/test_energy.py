"""`craft-sweeps energy` against plain numpy, on a model whose projections are fused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2Model

from orchestrator.commands.app import main


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


def test_the_share_is_that_of_numpys_decomposition(gpt2: GPT2Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["energy", str(tmp_path / "model"), "--ranks", "all,8,8", "--ranks", "2,24,12", "--json"]
    assert main(call) == 0
    rows = json.loads(capsys.readouterr().out)
    fused = np.stack([block.attn.c_attn.weight.detach().numpy() for block in gpt2.h]).astype(np.float64)
    stacks = {"q": np.swapaxes(fused[:, :, :24], 1, 2), "v": np.swapaxes(fused[:, :, 48:], 1, 2)}
    expected = [(name, ranks) for name in stacks for ranks in [(3, 8, 8), (2, 24, 12)]]
    assert [(row["projection"], tuple(row["ranks"])) for row in rows] == expected
    for row, (name, ranks) in zip(rows, expected, strict=True):
        assert row["parameters"] == sum(rank**2 for rank in ranks)
        assert row["energy_kept"] == pytest.approx(share(stacks[name], ranks), abs=1e-5)
    assert main(call[:-1]) == 0
    assert f"{share(stacks['v'], (2, 24, 12)):.1%}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("model", ["--ranks", "4,8,8"], "3 stacked layers"),
        ("model", ["--projections", "gate"], "has no projection 'gate'"),
        ("nothing", [], "does not exist"),
    ],
)
def test_what_cannot_be_had_is_said(
    gpt2: GPT2Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, arguments: list[str], message: str
) -> None:
    assert main(["energy", str(tmp_path / model), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()
