"""J at another rank: against the function the model computes, with factors of both ranks from one decomposition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from craft.factors.hosvd import hosvd
from craft.methods import METHODS
from craft.methods.method import BuildContext
from craft.models.loading import load_model
from craft.spec import RunSpec
from craft.trainer.adapter_folder import load_adapter, start_from
from craft.trainer.resizing import resized
from craft.trainer.training import train_run

SHORT = {"max_steps": 3, "train_examples": 24, "eval_examples": 16, "max_length": 24, "batch_size": 8, "learning_rate": 1e-2}


def reconstruct(core: torch.Tensor, u: list[torch.Tensor], js: list[torch.Tensor]) -> torch.Tensor:
    """G x1 (U1 J1) x2 (U2 J2) x3 (U3 J3), written out."""
    moved = [factor.double() @ j.double() for factor, j in zip(u, js, strict=True)]
    return torch.einsum("abc,la,ob,ic->loi", core.double(), *moved)


def change(ranks: tuple[int, int, int], weights: torch.Tensor, js: list[torch.Tensor]) -> torch.Tensor:
    """What J change of the weights: T - R."""
    factors = hosvd(weights, ranks)
    u = [factors.u1, factors.u2, factors.u3]
    return reconstruct(factors.core, u, js) - reconstruct(factors.core, u, [torch.eye(rank) for rank in ranks])


def test_growing_by_the_identity_and_slicing_back_is_the_same_j() -> None:
    learnt = {"J2": torch.eye(3) + 0.1 * torch.randn(3, 3)}
    grown = resized(learnt, {"J2": torch.randn(5, 5)}, identity=True)["J2"]
    assert torch.equal(grown[:3, :3], learnt["J2"])
    assert torch.equal(grown[3:, 3:], torch.eye(2))
    assert not grown[:3, 3:].any()
    assert not grown[3:, :3].any()
    assert torch.equal(resized({"J2": grown}, {"J2": torch.zeros(3, 3)}, identity=True)["J2"], learnt["J2"])


def test_what_the_smaller_j_changed_the_larger_one_changes_too() -> None:
    torch.manual_seed(0)
    weights = torch.randn(4, 12, 10)
    small, large = (4, 5, 5), (4, 8, 8)
    js = [torch.eye(rank) + 0.05 * torch.randn(rank, rank) for rank in small]
    names = ["J1", "J2", "J3"]
    grown = resized(dict(zip(names, js, strict=True)), {n: torch.zeros(r, r) for n, r in zip(names, large, strict=True)}, True)
    before, after = change(small, weights, js), change(large, weights, [grown[name] for name in names])
    # Within the subspace of the smaller factors the change is the very same: factors nest.
    factors = hosvd(weights, small)
    u2, u3 = factors.u2.double(), factors.u3.double()

    def seen(delta: torch.Tensor) -> torch.Tensor:
        return torch.einsum("loi,ob,ic->lbc", delta, u2, u3)

    torch.testing.assert_close(seen(after), seen(before), rtol=1e-4, atol=1e-5)
    # An untouched J stays untouched at every rank.
    still = resized({n: torch.eye(r) for n, r in zip(names, small, strict=True)}, grown, True)
    torch.testing.assert_close(change(large, weights, [still[name] for name in names]), torch.zeros(4, 12, 10).double())


def test_lora_grown_computes_what_it_computed() -> None:
    a, b = torch.randn(2, 6), torch.randn(5, 2)
    start = {"A": torch.randn(4, 6), "B": torch.zeros(5, 4)}
    grown = resized({"A": a, "B": b}, start, identity=False)
    torch.testing.assert_close(grown["B"] @ grown["A"], b @ a)
    assert torch.equal(grown["A"][2:], start["A"][2:])


def test_another_thing_of_the_same_name_is_refused() -> None:
    with pytest.raises(ValueError, match="A has 1 dimensions where 2 are wanted"):
        resized({"A": torch.zeros(3)}, {"A": torch.zeros(3, 3)}, identity=False)


@pytest.mark.parametrize(
    ("method", "before", "after"), [("craft", 8, 12), ("craft", 8, 4), ("craft_star", 8, 12), ("lora", 2, 4), ("lora", 4, 2)]
)
def test_a_run_of_the_same_task_goes_on_at_another_rank(
    tiny_bert: str, tmp_path: Path, method: str, before: int, after: int
) -> None:
    def spec_of(rank: int, **more: Any) -> RunSpec:
        parameters = {"ranks": ["all", rank, rank]} if method != "lora" else {"rank": rank}
        return RunSpec(model=tiny_bert, task="toy/sentiment", method=method, parameters=parameters, training=SHORT, **more)

    source = spec_of(before)
    adapter = train_run(source, tmp_path / "source").adapter
    spec = spec_of(after, warm_start={"run": source.key, "adapter": str(adapter)})
    row = METHODS[method]
    model = row.build(
        load_model(tiny_bert, "classification", ("negative", "positive"), seed=3),
        row.parameters.model_validate(spec.parameters),
        BuildContext("SEQ_CLS", total_steps=3),
    )
    assert spec.warm_start is not None
    start_from(model, spec.warm_start, spec)
    theirs = dict(load_adapter(adapter)[0].named_parameters())
    changed = 0
    for name, weight in ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad):
        shared = tuple(slice(0, min(one, other)) for one, other in zip(weight.shape, theirs[name].shape, strict=True))
        assert torch.equal(weight[shared], theirs[name][shared]), name  # the head's too: the task is the same
        changed += weight.shape != theirs[name].shape
        if "craft_J" in name:
            grown = torch.eye(len(weight))
            grown[shared] = weight[shared].detach()
            assert torch.equal(weight, grown), name  # new directions start exactly at the base model
    assert changed
    result = train_run(spec, tmp_path / "run")
    assert result.steps == SHORT["max_steps"]
    assert load_adapter(result.adapter)
