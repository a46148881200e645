"""Methods of low rank, and of few numbers between frozen matrices: by PEFT, LoTR and SuperLoRA by tuners of our own.

    lora      y = W x + s B A x         A (r x d_in), B (d_out x r) starts at 0, s = alpha / r;  rslora: s = alpha / sqrt(r)
    dora      its columns are normalized and rescaled by a learnt magnitude m (d_out more numbers per module)
    pissa, milora, olora      B A starts at the principal or the minor singular components of W, or from its QR; W loses B A
    adalora   y = W x + s P diag(λ) Q x      λ starts at 0; the least become 0, until `target_rank` are left on average
    lora_xs   y = W x + U_r S_r (R - I) V_rᵀ x          R (r x r) starts at I;  W = U S Vᵀ          r² numbers
    vera      y = W x + diag(b) B diag(d) A x           A, B of a seed, shared by all layers        r + d_out numbers
    ia3       k, v: y = l ⊙ (W x + b);  down: y = W (l ⊙ x) + b       l starts at 1                 d_out, or d_in numbers

LoRA-XS is PEFT's PSOFT: the paper's R, near 0, is R - I here, and U_r S_r has the weight's own scale, so alpha cancels.
qlora keeps W in 4 bits (NF4). PEFT's `prepare_model_for_kbit_training` is not called: it casts norms and embeddings to float32,
nothing casts the hidden states back, and attention then computes in float32. (TRL leaves it out for the same reason.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field, model_validator

from craft.methods.cutting import PRODUCTS
from craft.methods.method import (
    HIGH_RATES,
    BuildContext,
    Method,
    Projected,
    attach,
    attaches,
    dropout_field,
    is_meta,
    rank_field,
    rank_label,
    refuse_olora,
)
from craft.settings import Projections

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class LoraParameters(Projected):
    rank: int = rank_field(8, "Rank of the product B A.")
    alpha: float | None = Field(
        None,
        gt=0,
        validation_alias=AliasChoices("alpha", "lora_alpha"),
        description="Numerator of the scale; else `rank`.",
    )
    dropout: float = dropout_field("lora_dropout")


def variant(
    start: str | None = None, kind: str = "LORA", **settings: Any
) -> Callable[[nn.Module, LoraParameters, BuildContext], nn.Module]:
    """Makes a builder of LoRA with `settings`, and with a `start` that is computed from the weights if there are any."""

    def build(model: nn.Module, parameters: LoraParameters, context: BuildContext) -> nn.Module:
        alpha = parameters.alpha if parameters.alpha is not None else parameters.rank
        config = {"r": parameters.rank, "lora_alpha": alpha, "lora_dropout": parameters.dropout} | settings
        if start == "olora":
            refuse_olora(model)
        if start is not None and not is_meta(model):
            config["init_lora_weights"] = start
        return attach(model, context, kind, parameters, **config)

    return build


def lora_rate(parameters: LoraParameters, *, by_root: bool = False) -> float:
    """Returns the rate at which B A changes as fast as with rank 8 and scale 1: s B A grows like s √r, A being random."""
    rank, alpha = parameters.rank, parameters.alpha or parameters.rank
    scale = alpha / (math.sqrt(rank) if by_root else rank)
    return 1.2e-3 / scale * math.sqrt(8 / rank)


def row(
    name: str, title: str, reference: str, build: Callable[[nn.Module, LoraParameters, BuildContext], nn.Module], **more: Any
) -> Method:
    settings: dict[str, Any] = {"parameters": LoraParameters, "rank": "rank", "rate": lora_rate, "one_rate": {}} | more
    return Method(name, title, reference, build=build, label=rank_label, **settings)


_LORAS: tuple[Method, ...] = (
    row("lora", "LoRA", "Hu et al. 2022, arXiv 2106.09685", variant(), cutting=PRODUCTS),
    row(
        "rslora",
        "rsLoRA",
        "Kalajdzievski 2023, arXiv 2312.03732",
        variant(use_rslora=True),
        cutting=PRODUCTS,
        rate=partial(lora_rate, by_root=True),
    ),
    row("dora", "DoRA", "Liu et al. 2024, arXiv 2402.09353", variant(use_dora=True), decays_to_start=True, copies=(1, 3)),
    row("pissa", "PiSSA", "Meng et al. 2024, arXiv 2404.02948", variant("pissa"), decays_to_start=True),
    row("olora", "OLoRA", "Büyükakyüz 2024, arXiv 2406.01775", variant("olora"), decays_to_start=True),
    row("milora", "MiLoRA", "Wang et al. 2024, arXiv 2406.09044", variant(kind="MILORA"), decays_to_start=True),
    row(
        "qlora",
        "QLoRA",
        "Dettmers et al. 2023, arXiv 2305.14314",
        variant(),
        requires="cuda",
        packages=("bitsandbytes",),
        quantization={"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        # Half a byte, and for each block of 64 a constant of one byte.
        base_bytes=0.5 + 1 / 64,
        cutting=PRODUCTS,
    ),
)


class AdaloraParameters(Projected):
    """The shares are of the run's optimizer steps, where PEFT's `tinit` and `tfinal` count steps."""

    init_rank: int = Field(12, gt=0, validation_alias=AliasChoices("init_rank", "init_r"), description="Rank at the start.")
    target_rank: int = Field(
        8, gt=0, validation_alias=AliasChoices("target_rank", "target_r"), description="Mean rank of the modules at the end."
    )
    alpha: float | None = Field(
        None,
        gt=0,
        validation_alias=AliasChoices("alpha", "lora_alpha"),
        description="Numerator of the scale; else `init_rank`.",
    )
    dropout: float = dropout_field("lora_dropout")
    warmup_share: float = Field(0.1, ge=0, lt=1, description="Share of the steps before ranks begin to fall.")
    final_share: float = Field(0.3, ge=0, lt=1, description="Share of the steps with the final ranks.")

    @model_validator(mode="after")
    def _goes_down(self) -> AdaloraParameters:
        if self.target_rank > self.init_rank:
            raise ValueError(f"target_rank is at most init_rank; got {self.target_rank} and {self.init_rank}")
        if self.warmup_share + self.final_share >= 1:
            raise ValueError(
                f"warmup_share and final_share leave no steps between; got {self.warmup_share} + {self.final_share}"
            )
        return self


def build_adalora(model: nn.Module, parameters: AdaloraParameters, context: BuildContext) -> nn.Module:
    steps = context.total_steps or 100
    built = attach(
        model,
        context,
        "ADALORA",
        parameters,
        init_r=parameters.init_rank,
        target_r=parameters.target_rank,
        lora_alpha=parameters.alpha if parameters.alpha is not None else parameters.init_rank,
        lora_dropout=parameters.dropout,
        tinit=int(parameters.warmup_share * steps),
        tfinal=int(parameters.final_share * steps),
        total_step=steps,
    )
    for name, weight in built.named_parameters():
        if ".ranknum." in name:
            weight.requires_grad_(False)  # a constant divisor that is not saved; PEFT lets it train over a bfloat16 base
    return built


def adalora_optimizer(
    model: nn.Module, groups: list[dict[str, Any]], parameters: AdaloraParameters, context: BuildContext
) -> Optimizer:
    from craft.tuners.optimizers import AdaLoraAdam

    return AdaLoraAdam(model, groups)


ADALORA = Method(
    name="adalora",
    title="AdaLoRA",
    reference="Zhang et al. 2023, arXiv 2303.10512",
    parameters=AdaloraParameters,
    build=build_adalora,
    label=lambda each: f"r{each.init_rank}→{each.target_rank}, {' '.join(each.projections)}",
    optimizer=adalora_optimizer,
    rates=HIGH_RATES,
)


class LoraXsParameters(Projected):
    rank: int = rank_field(16, "Number of singular vectors, and size of the trained matrix.")
    dropout: float = dropout_field("psoft_dropout")


class VeraParameters(Projected):
    rank: int = rank_field(256, "Rank of the shared random matrices.")
    dropout: float = dropout_field("vera_dropout")


class Ia3Parameters(Projected):
    projections: Projections = Field(
        ("k", "v", "down"), min_length=1, description="Rescaled projections; `down` is rescaled at its input."
    )


def build_ia3(model: nn.Module, parameters: Ia3Parameters, context: BuildContext) -> nn.Module:
    from craft.models.projections import find_projections

    def paths(words: Sequence[str]) -> list[str]:
        stacks = find_projections(model, words, layers=parameters.layers)
        return [place.module_name for stack in stacks.values() for place in stack]

    # PEFT wants the second list to be a part of the first, and an end that is unique to `down` may not be so next to `o`.
    inputs = paths(["down"]) if "down" in parameters.projections else []
    return attach(model, context, "IA3", parameters, target_modules=paths(parameters.projections), feedforward_modules=inputs)


_PLAIN = {"psoft_orth": False, "psoft_mag_a": False, "psoft_mag_b": False}
_XS = attaches("PSOFT", _PLAIN, r="rank", psoft_alpha="rank", psoft_dropout="dropout")
_BALAZY, _KOPICZKO = "Bałazy et al. 2024, arXiv 2405.17604", "Kopiczko et al. 2024, arXiv 2310.11454"
_VERA = attaches("VERA", {"save_projection": False}, r="rank", vera_dropout="dropout")
LORA_XS = Method("lora_xs", "LoRA-XS", _BALAZY, LoraXsParameters, _XS, rank_label, decays_to_start=True, rate=lambda _: 4e-3)
VERA = Method("vera", "VeRA", _KOPICZKO, VeraParameters, _VERA, rank_label, rates=HIGH_RATES, rate=lambda _: 2e-2)
IA3 = Method(
    name="ia3",
    title="(IA)³",
    reference="Liu et al. 2022, arXiv 2205.05638",
    parameters=Ia3Parameters,
    build=build_ia3,
    copies=(2, 0),
    label=lambda parameters: " ".join(parameters.projections),
    decays_to_start=True,
    rates=HIGH_RATES,
    rate=lambda _: 3e-2,
)


_SCALING: Any = Field(1.0, gt=0, description="Factor on the change of the weights.")


class LotrParameters(Projected):
    rank: int = rank_field(32, "Rank of the shared factors.")
    scaling: float = _SCALING


class SuperloraParameters(Projected):
    rank: int = rank_field(8, "Tucker rank of every group.")
    groups: int = Field(4, gt=0, description="Groups of the joined weights.")
    order: int = Field(3, ge=2, le=5, description="Dimensions of a group's tensor.")
    scaling: float = _SCALING


_ACROSS: tuple[Method, ...] = (
    Method(
        name="lotr",
        title="LoTR",
        reference="Bershatsky et al. 2024, arXiv 2402.01376",
        parameters=LotrParameters,
        build=attaches("LOTR", r="rank", scaling="scaling"),
        label=rank_label,
    ),
    Method(
        name="superlora",
        title="SuperLoRA",
        reference="Chen et al. 2024, arXiv 2403.11887",
        parameters=SuperloraParameters,
        build=attaches("SUPERLORA", r="rank", groups="groups", order="order", scaling="scaling"),
        label=lambda each: f"r{each.rank} {each.groups}x{each.order}D, {' '.join(each.projections)}",
    ),
)

METHODS: tuple[Method, ...] = (*_LORAS, ADALORA, LORA_XS, VERA, *_ACROSS)
