"""Low-rank products against numpy's SVD of the full matrix, and one threshold against every other choice of ranks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from craft.factors.low_rank import halves, product_svd, ranks_within


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
