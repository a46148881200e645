"""The energy report's formulas against Monte Carlo, plain numpy and the paper's worked numbers; the command end to end."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from craft import tucker as energy_report
from craft.factors import energy
from craft.factors.energy import initialization_bound, noise_share, perturbation, stack_energy
from craft.factors.hosvd import hosvd


def _numpy_share(stack: np.ndarray, ranks: tuple[int, int, int]) -> float:
    """||W x1 U1^T x2 U2^T x3 U3^T||^2 / ||W||^2 by numpy's SVD of each unfolding."""
    core = stack
    for mode, rank in enumerate(ranks):
        unfolded = np.moveaxis(stack, mode, 0).reshape(stack.shape[mode], -1)
        u = np.linalg.svd(unfolded, full_matrices=False)[0][:, :rank]
        core = np.moveaxis(np.tensordot(u.T, core, axes=(1, mode)), 0, mode)
    return float(np.square(core).sum() / np.square(stack).sum())


def _stack(seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    common = np.einsum("lk,ok,ik->loi", *(generator.standard_normal((size, 4)) for size in (5, 24, 30)))
    return common + generator.standard_normal((5, 24, 30))


def test_energy_kept_and_the_bound_are_what_the_residual_says():
    stack = _stack()
    factors = hosvd(torch.from_numpy(stack), ("all", 20, 20))
    triples = [(5, 4, 4), (2, 20, 6), (5, 20, 20)]
    report = stack_energy("q", factors, triples)
    for row, ranks in zip(report.rows, triples, strict=True):
        assert row.ranks == ranks
        assert row.parameters == sum(rank**2 for rank in ranks)
        assert row.kept == pytest.approx(_numpy_share(stack, ranks), abs=1e-6)
        residual = stack - hosvd(torch.from_numpy(stack), ranks, dtype=torch.float64).reconstruct().numpy()
        assert 1 - row.kept == pytest.approx(np.square(residual).sum() / np.square(stack).sum(), abs=1e-6)
        assert row.bound >= 1 - row.kept
    assert report.norm == pytest.approx(np.linalg.norm(stack))


def test_theorem_1_says_nothing_at_small_ranks():
    row = stack_energy("q", hosvd(torch.from_numpy(_stack()), (1, 1, 1)), [(1, 1, 1)]).rows[0]
    assert row.bound > 1
    assert energy_report._cells(row)[4] == "says nothing"


@pytest.mark.parametrize("shape", [(6, 90, 90), (12, 50, 110), (1, 80, 60)])
def test_noise_share_is_that_of_a_gaussian_drawn_and_decomposed_by_numpy(shape):
    noise = np.random.default_rng(7).standard_normal(shape)
    for part in (0.15, 0.4, 0.8):
        ranks = (shape[0], max(1, int(shape[1] * part)), max(1, int(shape[2] * part)))
        assert noise_share(shape, ranks) == pytest.approx(_numpy_share(noise, ranks), abs=0.015)


def test_noise_share_of_a_large_shape_is_read_off_a_small_one(monkeypatch):
    exact = {ranks: noise_share((6, 240, 160), ranks) for ranks in [(6, 30, 30), (3, 100, 40), (6, 200, 150), (6, 240, 160)]}
    energy._noise_table.cache_clear()
    monkeypatch.setattr(energy, "_NOISE_ENTRIES", 6 * 90 * 60)
    for ranks, share in exact.items():
        assert noise_share((6, 240, 160), ranks) == pytest.approx(share, abs=0.01)
    energy._noise_table.cache_clear()


def test_minilms_shape_keeps_a_fifth_of_noise_at_100():
    assert noise_share((6, 384, 384), (6, 100, 100)) == pytest.approx(0.19, abs=0.01)


@pytest.mark.parametrize("shape", [(6, 90, 70), (1, 80, 60), (3, 20, 200)])
def test_noise_spectrum_is_marchenko_pasturs(shape):
    noise = np.random.default_rng(3).standard_normal(shape)
    for mode in range(3):
        unfolded = np.moveaxis(noise, mode, 0).reshape(shape[mode], -1)
        squares = np.square(np.linalg.svd(unfolded, compute_uv=False))
        squares = np.concatenate([squares, np.zeros(shape[mode] - len(squares))])
        expected = np.cumsum(squares) / squares.sum()
        np.testing.assert_allclose(energy._noise_cumulated(shape, mode), expected, atol=0.02)


def test_decay_counts_columns():
    factors = hosvd(torch.from_numpy(_stack()), ("all", "all", "all"))
    for mode, decay in enumerate(stack_energy("q", factors, [(5, 24, 30)]).modes):
        squares = np.square(np.linalg.svd(np.moveaxis(_stack(), mode, 0).reshape(_stack().shape[mode], -1), compute_uv=False))
        for level, needed in zip(energy.LEVELS, decay.needed, strict=True):
            assert squares[:needed].sum() >= level * squares.sum() * (1 - 1e-9) > squares[: needed - 1].sum()


@pytest.mark.parametrize(("epsilon", "dropout"), [(1e-3, 0.0), (0.05, 0.0), (0.0, 0.05), (0.05, 0.1)])
def test_perturbation_is_the_mean_over_draws(epsilon, dropout):
    core = hosvd(torch.from_numpy(_stack()), (5, 8, 10), dtype=torch.float64).core
    generator = torch.Generator().manual_seed(0)
    squares = []
    for _ in range(4000):
        moved = core
        for mode, rank in enumerate(core.shape):
            j = torch.eye(rank, dtype=torch.float64)
            j += epsilon * torch.randn(rank, rank, generator=generator, dtype=torch.float64)
            keep = torch.rand(rank, rank, generator=generator) >= dropout
            moved = torch.tensordot(j * keep / (1 - dropout), moved, dims=([1], [mode])).movedim(0, mode)
        squares.append(float((moved - core).square().sum() / core.square().sum()))
    mean, error = np.mean(squares), np.std(squares) / math.sqrt(len(squares))
    assert perturbation(core.shape, epsilon=epsilon, dropout=dropout) ** 2 == pytest.approx(mean, abs=4 * error)


def test_theorem_3_as_the_paper_works_it_out():
    assert initialization_bound((32, 128, 128)) == pytest.approx(0.18, abs=0.005)
    assert initialization_bound((32, 360, 360)) == pytest.approx(0.29, abs=0.005)
    assert perturbation((32, 360, 360)) < initialization_bound((32, 360, 360))
    assert initialization_bound((4, 10, 10), epsilon=0.5) == math.inf


def test_published_dropout_perturbs_by_an_eighth():
    assert perturbation((12, 100, 100), dropout=0.005) == pytest.approx(0.124, abs=0.001)


def _tiny_gpt2(folder):
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    model = GPT2Model(GPT2Config(n_layer=3, n_embd=24, n_head=2, vocab_size=40, n_positions=16))
    model.save_pretrained(folder)
    return model


def test_the_command_reports_a_fused_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "cache"))
    model = _tiny_gpt2(tmp_path / "model")
    plot = tmp_path / "plots" / "energy.png"
    call = ["report", str(tmp_path / "model"), "--ranks", "all,8,8", "--ranks", "2,24,12", "--plot", str(plot), "--json"]
    assert energy_report.main(call) == 0
    q, v = json.loads(capsys.readouterr().out)
    fused = np.stack([block.attn.c_attn.weight.detach().numpy() for block in model.h]).astype(np.float64)
    for stack, name, columns in ((q, "q", slice(0, 24)), (v, "v", slice(48, 72))):
        assert (stack["name"], stack["shape"]) == (name, [3, 24, 24])
        weights = np.swapaxes(fused[:, :, columns], 1, 2)
        for row, ranks in zip(stack["rows"], [(3, 8, 8), (2, 24, 12)], strict=True):
            assert row["kept"] == pytest.approx(_numpy_share(weights, ranks), abs=1e-5)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_command_draws_one_file_of_html_and_prints_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "cache"))
    _tiny_gpt2(tmp_path / "model")
    assert energy_report.main(["report", str(tmp_path / "model"), "--plot", str(tmp_path / "energy.html")]) == 0
    shown = capsys.readouterr().out
    assert "3, 16, 16" in shown
    assert "energy kept" in shown
    page = (tmp_path / "energy.html").read_text()
    assert "https://cdn" not in page.split("<body>")[1][:2000]
    assert "mode 3: inputs" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "4,8,8"], "3 stacked layers"),
        (["--projections", "gate"], "has no projection 'gate'"),
        (["--plot", "energy.doc"], ".html, .png"),
    ],
)
def test_the_command_says_what_cannot_be_had(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "cache"))
    _tiny_gpt2(tmp_path / "model")
    assert energy_report.main(["report", str(tmp_path / "model"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


def test_a_model_that_is_not_there(tmp_path, capsys):
    assert energy_report.main(["report", str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err
