"""Our own tuners and optimizers against their equations, computed another way: numpy in float64, tensorly, autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorly
import torch
from scipy.stats import norm
from torch import nn

from craft.methods import METHODS
from craft.methods.method import BuildContext
from craft.trainer.counting import optimizer_bytes
from craft.tuners.bottleneck import Train, factors
from craft.tuners.low_rank import fold
from craft.tuners.optimizers import AdaLoraAdam, GaLoreAdam
from tests.craft.methods.cases import put
from tests.craft.methods.test_families import stir

QUERIES = [f"bert.encoder.layer.{layer}.attention.self.query" for layer in range(3)]
DOWNS = [f"bert.encoder.layer.{layer}.output.dense" for layer in range(3)]


def adapted(tiny_model: Any, method: str, **parameters: Any) -> Any:
    """The tiny BERT with `method` on it, every trained number moved at random."""
    built = put(tiny_model("bert", head="classifier"), method, parameters)
    stir(built)
    return built.eval()


def change(built: Any, path: str, x: torch.Tensor) -> np.ndarray:
    """What the adapter adds to the outputs of one module."""
    layer = built.base_model.model.get_submodule(path)
    with torch.no_grad():
        return (layer(x) - layer.base_layer(x)).double().numpy()


def doubles(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def test_lotr_is_a_tucker_2_stack(tiny_model: Any) -> None:
    built = adapted(tiny_model, "lotr", rank=4, scaling=2.0, projections=["q"])
    part = built.base_model.parts["default"]
    (a,), (b,), (g,) = part.a.values(), part.b.values(), part.g.values()
    delta = 2 * np.einsum("or,lrs,is->loi", doubles(a), doubles(g), doubles(b))
    x = torch.randn(5, 32)
    for layer, path in enumerate(QUERIES):
        np.testing.assert_allclose(change(built, path, x), doubles(x) @ delta[layer].T, atol=1e-4)


@pytest.mark.parametrize(("order", "subscripts"), [(2, "ab,xa,yb->xy"), (3, "abc,xa,yb,zc->xyz")])
def test_superlora_is_tucker_groups_end_to_end(tiny_model: Any, order: int, subscripts: str) -> None:
    built = adapted(tiny_model, "superlora", rank=3, groups=2, order=order, projections=["q"])
    part = built.base_model.parts["default"]
    part.prepare()
    tensors = [
        np.einsum(subscripts, doubles(core), *map(doubles, factors_)).reshape(-1)[: 3 * 32 * 32 // 2]
        for core, factors_ in zip(part.cores, part.factors, strict=True)
    ]
    delta = np.concatenate(tensors).reshape(3, 32, 32)
    x = torch.randn(5, 32)
    for layer, path in enumerate(QUERIES):
        np.testing.assert_allclose(change(built, path, x), doubles(x) @ delta[layer].T, atol=1e-3)


@pytest.mark.parametrize(("length", "order"), [(3072, 3), (1024, 2), (1, 3), (7, 2), (589_824 * 24, 5), (999_983, 4)])
def test_a_fold_holds_its_group_and_little_more(length: int, order: int) -> None:
    sizes = fold(length, order)
    assert len(sizes) == order
    assert length <= np.prod(sizes) <= length + np.prod(sizes) / min(sizes)
    assert max(sizes) - min(sizes) <= 1 + max(sizes) // 8


@pytest.mark.parametrize(("rows", "columns", "rank"), [(64, 384, 5), (32, 8, 2), (13, 6, 3)])
def test_a_train_is_tensorlys(rows: int, columns: int, rank: int) -> None:
    train = Train(rows, columns, rank)
    train.reset(zero=False)
    dense = tensorly.tt_to_tensor([doubles(core) for core in train.cores])
    np.testing.assert_allclose(doubles(train.matrix()), dense.reshape(rows, columns), atol=1e-6)
    assert 0.2 < doubles(train.matrix()).std() * columns**0.5 < 3
    train.reset(zero=True)
    assert not train.matrix().any()


def test_widths_fall_into_even_factors() -> None:
    """The published shapes: 768 = 12·8·8, 64 = 8·8."""
    assert (factors(768, 3), factors(64, 2), factors(384, 3), factors(13, 2)) == ((12, 8, 8), (8, 8), (8, 8, 6), (13, 1))


def test_a_bottleneck_stands_behind_the_projection(tiny_model: Any) -> None:
    built = adapted(tiny_model, "pfeiffer", bottleneck=4)
    networks = built.base_model.parts["default"].networks
    x = torch.randn(5, 48)
    for path in DOWNS:
        weights = {name: doubles(weight) for name, weight in networks[path.replace(".", "-")].items()}
        y = doubles(built.base_model.model.get_submodule(path).base_layer(x))
        inner = y @ weights["down"].T + weights["down_bias"]
        inner *= norm.cdf(inner)  # gelu
        np.testing.assert_allclose(change(built, path, x), inner @ weights["up"].T + weights["up_bias"], atol=1e-4)


def test_lora_xs_stands_between_singular_vectors(tiny_model: Any) -> None:
    weight = doubles(tiny_model("bert", head="classifier").get_submodule(QUERIES[1]).weight)
    built = adapted(tiny_model, "lora_xs", rank=6, projections=["q"])
    r = doubles(built.base_model.model.get_submodule(QUERIES[1]).psoft_R["default"].weight)
    u, s, vt = np.linalg.svd(weight)
    # The signs of singular vectors are free, so R is compared in the basis that the layer has.
    layer = built.base_model.model.get_submodule(QUERIES[1])
    signs = np.sign(np.diag(doubles(layer._psoft_A_cache["default"]) @ vt[:6].T))
    delta = (u[:, :6] * s[:6] * signs) @ (r - np.eye(6)) @ (vt[:6] * signs[:, None])
    x = torch.randn(5, 32)
    np.testing.assert_allclose(change(built, QUERIES[1], x), doubles(x) @ delta.T, atol=1e-3)


def test_milora_takes_the_minor_components(tiny_model: Any) -> None:
    model = tiny_model("bert", head="classifier")
    weight = doubles(model.get_submodule(QUERIES[0]).weight.clone())
    built = put(model, "milora", {"rank": 5, "alpha": 10})
    layer = built.base_model.model.get_submodule(QUERIES[0])
    u, s, vt = np.linalg.svd(weight)
    product = 2 * doubles(layer.lora_B["default"].weight) @ doubles(layer.lora_A["default"].weight)
    np.testing.assert_allclose(product, (u[:, -5:] * s[-5:]) @ vt[-5:], atol=1e-5)
    np.testing.assert_allclose(doubles(layer.base_layer.weight), (u[:, :-5] * s[:-5]) @ vt[:-5], atol=1e-5)


def test_galores_first_step_and_its_memory() -> None:
    torch.manual_seed(0)
    for shape in ((6, 9), (9, 6)):
        weight, free = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(4))
        twin = nn.Parameter(free.detach().clone())
        start, gradient = doubles(weight.clone()), torch.randn(shape)
        groups: list[dict[str, Any]] = [{"params": [weight, free], "lr": 0.1, "weight_decay": 0.0}]
        optimizer = GaLoreAdam(groups, [weight], rank=2, interval=3, scale=0.5)
        plain = torch.optim.AdamW([{"params": [twin], "lr": 0.1, "weight_decay": 0.0}])
        weight.grad, free.grad, twin.grad = gradient.clone(), torch.ones(4), torch.ones(4)
        optimizer.step()
        plain.step()
        wide = doubles(gradient if shape[0] <= shape[1] else gradient.T)
        p = np.linalg.svd(wide)[0][:, :2]
        # Adam's first step is the sign of what it is given.
        update = 0.5 * p @ np.sign(p.T @ wide)
        expected = start - 0.1 * (update if shape[0] <= shape[1] else update.T)
        np.testing.assert_allclose(doubles(weight), expected, atol=1e-5)
        assert torch.equal(free, twin)
        assert optimizer_bytes(optimizer) == 4 * (2 * 2 * 9 + 6 * 2 + 2 * 4), (
            "two moments of r x n, P of m x r, AdamW for the rest"
        )


def adalora(tiny_model: Any) -> tuple[Any, AdaLoraAdam]:
    row, given = METHODS["adalora"], {"init_rank": 4, "target_rank": 2, "final_share": 0.25}
    built = put(tiny_model("bert", head="classifier"), "adalora", given)
    groups = [{"params": [weight for weight in built.parameters() if weight.requires_grad], "lr": 1e-2, "weight_decay": 0.0}]
    assert row.optimizer is not None
    optimizer = row.optimizer(built, groups, row.parameters.model_validate(given), BuildContext("SEQ_CLS", total_steps=20))
    assert isinstance(optimizer, AdaLoraAdam)
    return built, optimizer


def test_adaloras_penalty_has_the_gradient_of_its_formula(tiny_model: Any) -> None:
    _built, optimizer = adalora(tiny_model)
    pairs = [(a, b) for _, a, b in optimizer.triplets]
    norms = [torch.linalg.matrix_norm(side - torch.eye(4)) for a, b in pairs for side in (a @ a.T, b.T @ b)]
    (0.5 * torch.stack(norms).mean()).backward()
    expected = [weight.grad.clone() for pair in pairs for weight in pair]
    for weight in (weight for pair in pairs for weight in pair):
        weight.grad = torch.zeros_like(weight)
    optimizer._add_penalty()
    torch.testing.assert_close([weight.grad for pair in pairs for weight in pair], expected)


def test_adalora_keeps_the_budget(tiny_model: Any) -> None:
    words, labels = torch.arange(24).view(4, 6), torch.tensor([0, 1, 0, 1])
    built, optimizer = adalora(tiny_model)
    left = []
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(built(input_ids=words).logits, labels).backward()
        optimizer.step()
        left.append(sum(int(value.count_nonzero()) for value, _, _ in optimizer.triplets))
    assert left[0] == 6 * 4, "nothing goes while it warms up"
    assert left == sorted(left, reverse=True)
    assert left[14:] == [6 * 2] * 6, "the target, from three quarters of the steps to the end"


TOO_MANY = "rank 33 is more than .* at most 32 here"


@pytest.mark.parametrize(
    ("method", "parameters", "message"),
    [
        *((name, {"rank": 33}, TOO_MANY) for name in ("lora", "rslora", "dora", "pissa", "olora", "milora", "lora_xs", "lotr")),
        ("adalora", {"init_rank": 33}, TOO_MANY),
        ("superlora", {"rank": 40}, "fold into"),
        ("galore", {"rank": 40}, "at most 32"),
        ("adapterdrop", {"dropped_layers": 3}, "the model has 3 layers"),
        ("adalora", {"init_rank": 2, "target_rank": 4}, "target_rank is at most"),
        ("adalora", {"warmup_share": 0.5, "final_share": 0.5}, "no steps between"),
    ],
)
def test_what_cannot_be_is_said(tiny_model: Any, method: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        put(tiny_model("bert", head="classifier"), method, parameters)
