"""HOSVD against float64 SVD (numpy) and tensorly; low-rank products against numpy's SVD and every other choice of ranks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorly
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensorly.decomposition import tucker as tensorly_tucker

from craft.factors import hosvd as tucker
from craft.factors.hosvd import TuckerFactors, hosvd, sketch_difference
from craft.factors.low_rank import halves, product_svd, ranks_within
from craft.ranks import parse_ranks, resolve_ranks

SHAPES = [(4, 24, 30), (6, 40, 17), (3, 15, 90), (1, 20, 20), (2, 50, 9)]


def _stack(shape: tuple[int, int, int], seed: int = 0) -> torch.Tensor:
    """Noise over a few strong common directions: a spectrum that falls, then is flat, as attention weights' do."""
    generator = np.random.default_rng(seed)
    layers, outputs, inputs = shape
    rank = min(5, outputs, inputs)
    common = generator.standard_normal((layers, rank, rank)) * np.linspace(3, 1, rank)
    left, right = generator.standard_normal((outputs, rank)), generator.standard_normal((rank, inputs))
    return torch.from_numpy(left @ common @ right / 3 + generator.standard_normal(shape))


def _parts(factors: TuckerFactors) -> tuple[torch.Tensor, ...]:
    return factors.core, factors.u1, factors.u2, factors.u3


def reconstruct(factors: TuckerFactors) -> torch.Tensor:
    """R = G x1 U1 x2 U2 x3 U3, (L, d_out, d_in)."""
    return torch.einsum("abc,la,ob,ic->loi", *_parts(factors))


@pytest.mark.parametrize("shape", SHAPES)
def test_spectra_are_those_of_a_float64_svd_and_core_and_reconstruction_tensorlys_without_hooi(shape):
    stack = _stack(shape)
    ranks = tuple(max(1, min(size // 2, 8)) for size in shape)
    factors = hosvd(stack, ranks, dtype=torch.float64)
    with tensorly.backend_context("numpy", local_threadsafe=True):
        _, reference = tensorly_tucker(stack.numpy(), rank=list(ranks), init="svd", n_iter_max=0, tol=0)
        # tensorly chooses its own signs, and its order of updates matters after the first sweep: project by its factors
        projected = tensorly.tenalg.multi_mode_dot(stack.numpy(), [other.T for other in reference])
        expected = tensorly.tucker_to_tensor((projected, reference))
    for mode, (u, other) in enumerate(zip(_parts(factors)[1:], reference, strict=True)):
        values = np.linalg.svd(tensorly.unfold(stack.numpy(), mode), compute_uv=False)
        spectrum = factors.singular_values[mode].numpy()
        np.testing.assert_allclose(spectrum[: len(values)], values, rtol=1e-10)
        assert np.all(spectrum[len(values) :] < 1e-6 * values[0])  # more rows than columns: the rest of the spectrum is 0
        np.testing.assert_allclose(u.T @ u, np.eye(ranks[mode]), atol=1e-13)
        signs = np.sign((u.numpy() * other).sum(0))
        np.testing.assert_allclose(u.numpy(), other * signs, atol=1e-10)
        projected = np.moveaxis(np.moveaxis(projected, mode, -1) * signs, -1, mode)
    np.testing.assert_allclose(factors.core.numpy(), projected, atol=1e-9)
    np.testing.assert_allclose(reconstruct(factors).numpy(), expected, atol=1e-10)
    assert factors.squared_norm == pytest.approx(float(stack.square().sum()), rel=1e-13)


def test_leading_slices_are_the_smaller_decomposition():
    stack = _stack((5, 33, 41)).float()
    large = hosvd(stack, ("all", 30, 40))
    for ranks in [(5, 8, 8), (2, 30, 3), (1, 1, 1)]:
        torch.testing.assert_close(_parts(large.slice(ranks)), _parts(hosvd(stack, ranks)), rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match=r"cannot be sliced to \(5, 31, 8\)"):
        large.slice((5, 31, 8))


@pytest.mark.parametrize("ranks", [(3, 20, 25), (4, 150, 140)], ids=["few", "all"])
@pytest.mark.parametrize(("limit", "size"), [("_BLOCK", 1), ("_BLOCK", 100), ("_BLOCK", 5000), ("_LARGE", 16)])
def test_any_chunking_and_the_memory_saving_eigensolver_give_the_same_factors(monkeypatch, limit, size, ranks):
    stack = _stack((4, 150, 140))
    usual = hosvd(stack, ranks, dtype=torch.float64)
    monkeypatch.setattr(tucker, limit, size)
    other = hosvd([weight.clone() for weight in stack], ranks, dtype=torch.float64)
    torch.testing.assert_close(_parts(other), _parts(usual), rtol=0, atol=1e-9)


def test_transposed_views_half_precision_and_parameters_are_read_by_value():
    stack = _stack((3, 20, 28)).bfloat16()
    expected = hosvd(stack.double(), (3, 6, 6))
    for weights in (list(stack), [weight.T.contiguous().T for weight in stack], [*map(torch.nn.Parameter, stack)]):
        for first, other in zip(_parts(expected), _parts(hosvd(weights, (3, 6, 6))), strict=True):
            assert (other.dtype, other.requires_grad) == (torch.float32, False)
            torch.testing.assert_close(first, other, rtol=0, atol=1e-6)


def test_largest_entries_are_positive_and_survive_negated_weights():
    stack = _stack((4, 22, 26))
    factors = hosvd(stack, (4, 9, 9), dtype=torch.float64)
    for u in (factors.u1, factors.u2, factors.u3):
        peaks = u.gather(0, u.abs().argmax(0, keepdim=True))
        assert (peaks > 0).all()
    negated = hosvd(-stack, (4, 9, 9), dtype=torch.float64)
    torch.testing.assert_close(negated.u2, factors.u2, rtol=0, atol=1e-10)
    torch.testing.assert_close(negated.core, -factors.core, rtol=0, atol=1e-9)


def test_ties_between_opposite_entries_are_decided_by_place():
    column = torch.tensor([[0.1], [-0.7], [0.7 + 1e-12]], dtype=torch.float64)
    expected = tucker._canonical(column)
    jittered = column.clone()
    jittered[1] -= 2e-12
    torch.testing.assert_close(tucker._canonical(jittered), expected, rtol=0, atol=1e-11)


def test_sketch_tells_bases_apart():
    stack = _stack((4, 48, 56))
    factors = hosvd(stack, (4, 10, 12), dtype=torch.float64)
    sketch = factors.sketch()
    assert sketch.shape == (5, 26)
    assert sketch_difference(sketch, hosvd(stack, (4, 10, 12)).sketch()) < 1e-5

    flipped = factors.u2.clone()
    flipped[:, 7] *= -1
    exchanged = factors.u3[:, [0, 1, 3, 2, *range(4, 12)]]
    angle = torch.tensor(0.3)
    rotated = factors.u2.clone()
    rotated[:, 4:6] = rotated[:, 4:6] @ torch.tensor([[angle.cos(), -angle.sin()], [angle.sin(), angle.cos()]]).double()
    for changed in ({"u2": flipped}, {"u3": exchanged}, {"u2": rotated}, {"core": factors.core * 1.01}):
        parts = dict(zip(("core", "u1", "u2", "u3"), _parts(factors), strict=True)) | changed
        other = TuckerFactors(**parts, singular_values=factors.singular_values)
        assert sketch_difference(sketch, other.sketch()) > 5e-3, changed.keys()
    assert sketch_difference(sketch, hosvd(_stack((4, 48, 56), seed=1), (4, 10, 12)).sketch()) > 0.1
    assert sketch_difference(sketch, factors.slice((4, 9, 12)).sketch()) == float("inf")


def test_every_flipped_column_moves_the_sketch():
    """No column lies so that the probes miss its sign: they would if one probe alone were asked."""
    factors = hosvd(_stack((6, 300, 200)), (6, 300, 200), dtype=torch.float64)
    probed = factors.sketch()[:-1].abs().amax(0)
    assert float(probed.min()) > 5e-3


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ((7, 8, 8), r"r1 \(layers\) is 7, but projection 'q' has 6 stacked layers .*6 x 40 x 17.*from 1 to 6, or 'all'"),
        ((6, 41, 8), r"r2 \(outputs\) is 41, but projection 'q' has 40 output features"),
        ((6, 8, 18), r"r3 \(inputs\) is 18, but projection 'q' has 17 input features"),
        ((6, 0, 8), r"r2 \(outputs\) is a whole number from 1, or 'all'; got 0"),
        ((6, 8, 2.5), "got 2.5"),
        (("every", 8, 8), "got 'every'"),
        ((True, 8, 8), "got True"),
        ((6, 8), "ranks are three"),
        ("all", "ranks are three"),
    ],
)
def test_ranks_that_do_not_fit_are_refused_with_what_would(ranks, message):
    with pytest.raises(ValueError, match=message):
        resolve_ranks(ranks, (6, 40, 17), name="projection 'q'")


@pytest.mark.parametrize("text", ["all,64,32", "all, 64, 32", " allx64x32 "])
def test_ranks_may_be_written_with_blanks(text: str) -> None:
    assert parse_ranks(text) == ("all", 64, 32)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], "no weights"),
        ([torch.zeros(3, 4), torch.zeros(4, 3)], r"one shape .*\(3, 4\), \(4, 3\)"),
        ([torch.zeros(3)], "matrices"),
        ([torch.zeros(3, 4, device="meta")], "meta"),
        ([torch.zeros(3, 4, dtype=torch.int8)], r"int8.*Dequantize"),
        ([torch.ones(3, 4), torch.full((3, 4), torch.nan)], r"layers \[1\]"),
    ],
)
def test_weights_that_cannot_be_decomposed_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        hosvd(weights, (1, 1, 1))


def test_an_all_zero_stack_has_factors():
    factors = hosvd(torch.zeros(2, 6, 5), (2, 3, 3))
    assert not reconstruct(factors).any()
    for u, size in zip(_parts(factors)[1:], (2, 3, 3), strict=True):
        torch.testing.assert_close(u.T @ u, torch.eye(size))


def thin(d_out: int, r: int, d_in: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(d_out + 10 * r + 100 * d_in)
    return torch.randn(d_out, r, generator=generator), torch.randn(r, d_in, generator=generator)


@pytest.mark.parametrize(("d_out", "r", "d_in"), [(12, 4, 9), (9, 4, 12), (5, 7, 6)])
def test_halves_are_the_best_approximation_of_every_rank(d_out: int, r: int, d_in: int) -> None:
    b, a = thin(d_out, r, d_in)
    product = 0.7 * b.double().numpy() @ a.double().numpy()
    u, s, vt = np.linalg.svd(product)
    spectrum = product_svd(b, a, 0.7)
    for rank in range(1, r + 1):
        b_cut, a_cut = halves(spectrum, rank)
        assert (b_cut.shape, a_cut.shape) == ((d_out, rank), (rank, d_in))
        best = (u[:, :rank] * s[:rank]) @ vt[: min(rank, len(s))] if rank <= len(s) else product
        np.testing.assert_allclose((b_cut @ a_cut).numpy(), best, atol=1e-10)
        # both halves carry the same part of each direction
        assert torch.allclose(b_cut.square().sum(0), a_cut.square().sum(1))


products = st.lists(
    st.tuples(
        st.lists(st.floats(0.01, 10), min_size=1, max_size=3).map(lambda each: sorted(each, reverse=True)), st.integers(1, 5)
    ),
    min_size=1,
    max_size=4,
)


@given(products, st.integers(0, 40))
def test_no_choice_with_as_few_parameters_loses_less(spectra: list[tuple[list[float], int]], budget: int) -> None:
    values = {str(number): each for number, (each, _) in enumerate(spectra)}
    costs = {str(number): cost for number, (_, cost) in enumerate(spectra)}
    ranks = ranks_within(values, costs, budget)

    def loss(chosen: dict[str, int]) -> float:
        return sum(value**2 for name, rank in chosen.items() for value in values[name][rank:])

    def size(chosen: dict[str, int]) -> int:
        return sum(rank * costs[name] for name, rank in chosen.items())

    assert size(ranks) <= budget
    everything = sum(len(values[name]) * costs[name] for name in values)
    assert size(ranks) == everything or size(ranks) + max(costs.values()) > budget
    every = itertools.product(*(range(len(each) + 1) for each in values.values()))
    rivals = [dict(zip(values, choice, strict=True)) for choice in every]
    assert loss(ranks) <= min(loss(rival) for rival in rivals if size(rival) <= size(ranks)) + 1e-9
