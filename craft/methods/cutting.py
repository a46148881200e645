"""How adapters of a method are cut to fewer parameters: which products an SVD cuts, and how the smaller ones are saved.

J_MINUS_I  CRAFT: J - I of every J, to its nearest matrix of rank k, which 2 r k numbers determine; from r / 2 on J stays
PRODUCTS   LoRA: s B A of every module, with s in both halves; a module of rank 0 is left out
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from craft.factors.low_rank import Spectrum

PREFIX = "base_model.model."
"""Begins PEFT's names of saved weights of the base model's modules."""
ROUNDING = 1e-5
"""Singular values of J - I up to this may be rounding errors of a float32 J."""

Tensors = dict[str, "Tensor"]
Choose = Callable[[Tensors, dict[str, int]], Mapping[str, int]]
"""Gives the rank of every product, from its singular values and the parameters of one of them."""


@dataclass(frozen=True)
class Cutting:
    """How a method's adapters are cut.

    Attributes:
        costs: `costs(tensors)` gives the parameters of one direction of every product in an adapter's file.
        cut: `cut(tensors, config, choose)` cuts the tensors in place and returns PEFT's configuration of the smaller adapter,
            and the number of its parameters.
        hold: `hold(model)` returns a function to call after each optimizer step, which projects the trained weights back to
            their rank; None if training cannot raise it.
    """

    costs: Callable[[Mapping[str, Tensor]], dict[str, int]]
    cut: Callable[[Tensors, dict[str, Any], Choose], tuple[dict[str, Any], int]]
    hold: Callable[[nn.Module], Callable[[], None]] | None = None


def _j_costs(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    return {key: 2 * len(j) for key, j in tensors.items() if ".craft_J." in key}


def _cut_js(tensors: Tensors, config: dict[str, Any], choose: Choose) -> tuple[dict[str, Any], int]:
    import torch

    from craft.factors.low_rank import halves

    costs, parameters = _j_costs(tensors), 0
    identity = {key: torch.eye(len(tensors[key]), dtype=torch.float64) for key in costs}
    spectra = {key: torch.linalg.svd(tensors[key].double() - identity[key]) for key in costs}
    # From this rank on the factors of J - I have as many parameters as J: then nothing is cut of it.
    limits = {key: -(-len(tensors[key]) // 2) for key in costs}
    ranks = choose({key: s[: limits[key]] for key, (_, s, _) in spectra.items()}, costs)
    for key, rank in ranks.items():
        j = tensors[key]
        parameters += j.numel() if rank >= limits[key] else costs[key] * rank
        if rank < limits[key]:
            b, a = halves(spectra[key], rank)
            tensors[key] = (identity[key] + b @ a).to(j.dtype)
    return config, parameters


def _hold_js(model: nn.Module) -> Callable[[], None]:
    """Returns a function that projects each J - I to the nearest matrix of its present rank."""
    import torch

    from craft.factors.low_rank import halves

    def spectra(js: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
        # On the CPU, which is faster at matrices of this size, after one wait for the GPU.
        numbers = torch.cat([j.detach().flatten() for j in js]).cpu().double().split([j.numel() for j in js])
        return [torch.linalg.svd(entries.view(j.shape) - identity(j)) for j, entries in zip(js, numbers, strict=True)]

    def identity(j: Tensor) -> Tensor:
        return torch.eye(len(j), dtype=torch.float64)

    js = [j for name, j in model.named_parameters() if j.requires_grad and "craft_J" in name]
    ranks: dict[nn.Parameter, int] = {}
    for j, (_, values, _) in zip(js, spectra(js), strict=True):
        rank = int((values > ROUNDING).sum())
        ranks |= {j: rank} if rank < -(-len(j) // 2) else {}

    @torch.no_grad()
    def put_back() -> None:
        for (j, rank), spectrum in zip(ranks.items(), spectra([*ranks]) if ranks else [], strict=True):
            b, a = halves(spectrum, rank)
            j.copy_(identity(j) + b @ a, non_blocking=True)

    return put_back


def _product_costs(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    end = ".lora_A.weight"
    inputs = {key[len(PREFIX) : -len(end)]: a.shape[1] for key, a in tensors.items() if key.endswith(end)}
    return {name: d_in + len(tensors[f"{PREFIX}{name}.lora_B.weight"]) for name, d_in in inputs.items()}


def _cut_products(tensors: Tensors, config: dict[str, Any], choose: Choose) -> tuple[dict[str, Any], int]:
    from craft.factors.low_rank import product_svd

    costs = _product_costs(tensors)
    pairs = {name: [tensors.pop(f"{PREFIX}{name}.lora_{half}.weight") for half in "BA"] for name in costs}
    rslora = bool(config.get("use_rslora"))
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if rslora else config["r"])
    spectra = {name: product_svd(b, a, scale) for name, (b, a) in pairs.items()}
    ranks = choose({name: singular for name, (_, singular, _) in spectra.items()}, costs)
    settings = write_products(tensors, spectra, ranks, pairs[next(iter(pairs))][0].dtype, rslora)
    return config | settings, sum(rank * costs[name] for name, rank in ranks.items())


def write_products(
    tensors: Tensors, spectra: Mapping[str, Spectrum], ranks: Mapping[str, int], dtype: Any, rslora: bool = False
) -> dict[str, Any]:
    """Adds the halves of the nearest product of its rank for every module to an adapter's tensors; nothing for rank 0.

    Returns PEFT's settings for them, with a scale of 1 in every module.
    """
    from craft.factors.low_rank import halves

    nonzero_ranks = {name: rank for name, rank in ranks.items() if rank}
    largest = max(nonzero_ranks.values())
    for name, rank in nonzero_ranks.items():
        for half, cut in zip("BA", halves(spectra[name], rank), strict=True):
            tensors[f"{PREFIX}{name}.lora_{half}.weight"] = cut.to(dtype).contiguous()
    alpha = (lambda rank: rank**0.5) if rslora else (lambda rank: rank)
    smaller = {name: rank for name, rank in nonzero_ranks.items() if rank < largest}
    settings = {"r": largest, "lora_alpha": alpha(largest), "rank_pattern": smaller}
    settings["alpha_pattern"] = {name: alpha(rank) for name, rank in smaller.items()}
    return settings if len(nonzero_ranks) == len(ranks) else settings | {"target_modules": sorted(nonzero_ranks)}


J_MINUS_I = Cutting(_j_costs, _cut_js, _hold_js)
PRODUCTS = Cutting(_product_costs, _cut_products)
