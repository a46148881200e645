"""Ranks by group of rows, adapters cut to smaller ranks, and rates by shell, against references written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import get_peft_model
from torch import Tensor, nn

from craft.spec import RunSpec
from craft.trainer.nested import Nest
from craft.tuners.craft.config import CraftConfig
from craft.tuners.craft.layer import RankGroup
from craft.tuners.craft.rates import ByEntry, scaled_adamw, shell_factors

Make = Callable[..., Any]
RANKS = [(2, 4, 6), (2, 8, 8), ("all", 12, 8)]


def adapted(make: Make, family: str, ranks: Any, dtype: torch.dtype = torch.float64, **settings: Any) -> Any:
    config = CraftConfig(task_type="FEATURE_EXTRACTION", ranks=ranks, projections=("q", "v", "up"), init_seed=3, **settings)
    model = get_peft_model(make(family, dtype), config).to(dtype)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.3 * torch.randn(weight.shape, dtype=dtype, generator=generator)
    return model


def learnt(model: Any) -> dict[str, Tensor]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def alone(make: Make, family: str, whole: Any, ranks: Any, dtype: torch.dtype = torch.float64) -> Any:
    """An adapter of those ranks alone, with the leading slices of `whole`'s J."""
    model = adapted(make, family, ranks, dtype)
    with torch.no_grad():
        for (name, small), large in zip(learnt(model).items(), learnt(whole).values(), strict=True):
            assert "J" in name
            small.copy_(large[: len(small), : len(small)])
    return model


def hidden(model: Any, ids: Tensor) -> Tensor:
    return model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state


@pytest.mark.parametrize("tokens", [5, 40])  # few: beside the base layer; many: through the weight
def test_rows_in_groups_give_the_outputs_and_the_summed_gradients_of_each_rank_alone(
    tiny_model: Make, tokens: int, family: str
) -> None:
    whole = adapted(tiny_model, family, RANKS[-1])
    ids = torch.randint(1, 64, (7, tokens), generator=torch.Generator().manual_seed(5))
    groups = [RankGroup(0, 2, RANKS[1]), RankGroup(2, 3, RANKS[2]), RankGroup(3, 7, RANKS[0])]
    with whole.base_model.at_ranks(groups):
        found = hidden(whole, ids)
        found.sin().sum().backward()
    expected = {name: torch.zeros_like(weight) for name, weight in learnt(whole).items()}
    for start, stop, ranks in groups:
        small = alone(tiny_model, family, whole, ranks)
        outputs = hidden(small, ids[start:stop])
        torch.testing.assert_close(found[start:stop], outputs, rtol=0, atol=1e-10)
        outputs.sin().sum().backward()
        for total, weight in zip(expected.values(), learnt(small).values(), strict=True):
            total[: len(weight), : len(weight)] += weight.grad
    for (name, weight), total in zip(learnt(whole).items(), expected.values(), strict=True):
        scale = total.abs().max()
        torch.testing.assert_close(weight.grad / scale, total / scale, rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize("way", ["cut", "drawn", "all"])
def test_a_step_s_loss_is_the_mean_over_its_ranks(tiny_model: Make, way: str) -> None:
    whole = adapted(tiny_model, "bert", RANKS[-1])
    lists = [list(ranks) for ranks in RANKS]
    parameters = {"ranks": lists[-1], "nested": lists, "nested_training": way}
    spec = RunSpec(model="m", task="toy/sentiment", method="craft", parameters=parameters, seed=2)
    nest = Nest(whole, spec)
    ids = torch.randint(1, 64, (3, 6), generator=torch.Generator().manual_seed(5))
    seen = set()
    for step in range(6):
        chosen = nest.ranks_at(step, [6])
        seen.update(chosen)
        with nest.expanded({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, chosen) as (inputs, times):
            loss = whole(**inputs).last_hidden_state.sin().sum() / times
        by_hand = [hidden(alone(tiny_model, "bert", whole, ranks), ids).sin().sum() for ranks in chosen]
        torch.testing.assert_close(loss, torch.stack(by_hand).mean(), rtol=1e-12, atol=0)
        assert len(by_hand) == {"cut": 1, "drawn": 2, "all": 3}[way]
        assert chosen[-1] == RANKS[-1]
    assert seen == ({RANKS[-1]} if way == "cut" else set(RANKS))


@pytest.mark.parametrize("training", [False, True])
def test_a_slice_computes_as_an_adapter_of_its_ranks_bit_for_bit(tiny_model: Make, training: bool) -> None:
    whole = adapted(tiny_model, "bert", RANKS[-1], torch.float32).train(training)
    ids = torch.randint(1, 64, (4, 6), generator=torch.Generator().manual_seed(5))
    for ranks in RANKS:
        small = alone(tiny_model, "bert", whole, ranks, torch.float32).train(training)
        with torch.set_grad_enabled(training):
            expected = hidden(small, ids)
            with whole.base_model.at_ranks([RankGroup(0, 0, ranks)]):
                assert torch.equal(hidden(whole, ids), expected)
            with whole.base_model.cut_to(ranks):
                assert torch.equal(hidden(whole, ids), expected)
                assert [len(weight) for weight in learnt(whole).values()] == [len(one) for one in learnt(small).values()]


def test_after_a_cut_the_adapter_is_whole_again(tiny_model: Make) -> None:
    whole = adapted(tiny_model, "bert", RANKS[-1], torch.float32).eval()
    ids = torch.randint(1, 64, (4, 6), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        before, values = hidden(whole, ids), {name: weight.clone() for name, weight in learnt(whole).items()}
        with whole.base_model.cut_to(RANKS[0]):
            for weight in learnt(whole).values():
                weight.zero_()
            hidden(whole, ids)
        assert torch.equal(hidden(whole, ids), before)
        assert all(torch.equal(weight, values[name]) for name, weight in learnt(whole).items())
        assert whole.peft_config["default"].ranks == RANKS[-1]


def test_merging_inside_the_block_merges_the_slice(tiny_model: Make) -> None:
    whole = adapted(tiny_model, "bert", RANKS[-1]).eval()
    ids = torch.randint(1, 64, (4, 6), generator=torch.Generator().manual_seed(5))
    with torch.no_grad(), whole.base_model.at_ranks([RankGroup(0, 0, RANKS[0])]):
        expected = hidden(whole, ids)
        whole.merge_adapter()
        torch.testing.assert_close(hidden(whole, ids), expected, rtol=0, atol=1e-10)
        whole.unmerge_adapter()


def test_every_rank_of_a_pass_drops_the_same_entries(tiny_model: Make) -> None:
    whole = adapted(tiny_model, "bert", RANKS[-1], dropout=0.5).train()
    ids = torch.ones(2, 3, dtype=torch.int64)
    with whole.base_model.at_ranks([RankGroup(0, 1, RANKS[0]), RankGroup(1, 2, RANKS[2])]):
        hidden(whole, ids)
        for stack in whole.base_model.craft_adapter("default").stacks.values():
            small = stack.sliced((2, 4, 6))
            assert small.masks is not None
            assert all(torch.equal(one, other) for one, other in zip(small.masks, stack.masks, strict=True))


def test_shell_factors_equal_their_definition() -> None:
    ranks, reference = [7, 2, 4], 64
    factors = shell_factors(ranks, reference)
    for row in range(7):
        for column in range(7):
            holds = min(rank for rank in ranks if row < rank and column < rank)
            assert float(factors[row, column]) == pytest.approx(reference / holds)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_rates_by_shell_are_adamw_at_each_entry_s_own_rate(tiny_model: Make, decay: float) -> None:
    """Reference: an AdamW of its own for every entry, each a parameter of one number."""
    whole = adapted(tiny_model, "bert", ("all", 4, 3), torch.float64)
    adapter = whole.base_model.craft_adapter("default")
    weights = [weight for name, weight in learnt(whole).items() if ".q_J" in name]
    optimizer = scaled_adamw(
        [{"params": list(learnt(whole).values()), "lr": 1e-2, "weight_decay": decay}],
        adapter,
        lambda stack: [(3, 2, 3), (3, 4, 3)],
        8,
    )
    assert isinstance(optimizer, ByEntry)
    assert optimizer.param_groups[0]["lr"] == 1e-2
    own: list[tuple[nn.Parameter, int, int, int]] = []
    groups = []
    for mode, weight in enumerate(weights):
        for row in range(len(weight)):
            for column in range(len(weight)):
                shell = (8 / 2 if row < 2 and column < 2 else 8 / 4, 8 / 3)[mode - 1] if mode else 1.0
                entry = nn.Parameter(weight.detach()[row, column].clone())
                own.append((entry, mode, row, column))
                groups.append({"params": [entry], "lr": 1e-2 * shell, "weight_decay": decay})
    reference = torch.optim.AdamW(groups)
    generator = torch.Generator().manual_seed(6)
    for _ in range(4):
        for weight in learnt(whole).values():
            weight.grad = torch.randn(weight.shape, dtype=weight.dtype, generator=generator)
        for entry, mode, row, column in own:
            entry.grad = weights[mode].grad[row, column].clone()  # type: ignore[index]
        optimizer.step()
        reference.step()
    for entry, mode, row, column in own:
        assert float(weights[mode][row, column]) == pytest.approx(float(entry), abs=1e-12)


def test_entries_of_factor_one_take_adamw_s_very_step() -> None:
    torch.manual_seed(0)
    start = torch.randn(6, 6)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    factors = torch.ones(6, 6)
    factors[:3, :3] = 2
    one, two = ByEntry([{"params": [ours], "lr": 1e-2}], {ours: factors}), torch.optim.AdamW([theirs], lr=1e-2)
    for _ in range(3):
        ours.grad = torch.randn(6, 6)
        theirs.grad = ours.grad.clone()
        one.step()
        two.step()
    assert torch.equal(ours[3:], theirs[3:])
    assert torch.equal(ours[:, 3:], theirs[:, 3:])
    assert not torch.equal(ours[:3, :3], theirs[:3, :3])
