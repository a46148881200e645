"""Tuners of low rank that PEFT lacks: LoTR (arXiv 2402.01376), SuperLoRA (2403.11887) and MiLoRA (2406.09044).

    LoTR        ΔW_l = s A G_l Bᵀ                            A (d_out x r), B (d_in x r) shared by a stack, G_l (r x r)
    SuperLoRA   [vec ΔW_1; ...; vec ΔW_n] = F(T_1), ..., F(T_G)        T_g = s C_g x_1 A_g1 x_2 ... x_M A_gM
    MiLoRA      s B A = U_r S_r V_rᵀ of the r smallest singular values of W, which loses it, in the model and at every loading

SuperLoRA lays the entries of all weights end to end and cuts them into G groups, each folded into an M-dimensional tensor, as
near to a cube as possible. The paper's shuffling and fixed projection are the identity here. All start as the base model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from peft import LoraConfig
from peft.tuners.lora import LoraLayer, LoraModel
from peft.utils.other import transpose
from peft.utils.peft_types import PeftType
from torch import Tensor, nn
from torch.nn import functional as F

from craft.models.compute import no_autocast
from craft.tuners.joint import JointAdapter, JointConfig, JointTuner, Shape, is_current, is_stale, parameter, versions


@dataclass
class LotrConfig(JointConfig):
    KIND: ClassVar[str] = "LOTR"
    r: int = field(default=32, metadata={"help": "rank of both shared factors"})
    scaling: float = field(default=1.0, metadata={"help": "s"})


class LotrAdapter(JointAdapter):
    """A, B and the cores G (L, r, r) of every stack."""

    def __init__(self, config: Any, stacks: dict[str, dict[str, Shape]]) -> None:
        super().__init__(config, stacks)
        self.scaling = config.scaling
        self.a, self.b, self.g = nn.ParameterDict(), nn.ParameterDict(), nn.ParameterDict()
        self.places: dict[str, tuple[str, int]] = {}
        for name, layers in stacks.items():
            d_out, d_in = next(iter(layers.values()))
            if config.r > min(d_out, d_in):
                raise ValueError(f"LoTR's rank is at most {min(d_out, d_in)} for {name} ({d_out} x {d_in}); got {config.r}")
            self.a[name], self.b[name] = parameter(d_out, config.r), parameter(d_in, config.r)
            self.g[name] = parameter(len(layers), config.r, config.r)
            self.places |= {path: (name, index) for index, path in enumerate(layers)}

    @torch.no_grad()
    def reset(self) -> None:
        for name in self.g:
            nn.init.orthogonal_(self.a[name])
            nn.init.orthogonal_(self.b[name])
            nn.init.zeros_(self.g[name])

    def change(self, path: str, x: Tensor, y: Tensor) -> Tensor:
        name, index = self.places[path]
        return (x @ self.b[name] @ self.g[name][index].T @ self.a[name].T) * self.scaling


class LotrModel(JointTuner):
    prefix = "lotr_"
    adapter_cls: ClassVar[type[JointAdapter]] = LotrAdapter


@dataclass
class SuperLoraConfig(JointConfig):
    KIND: ClassVar[str] = "SUPERLORA"
    r: int = field(default=8, metadata={"help": "rank of every mode"})
    groups: int = field(default=4, metadata={"help": "G"})
    order: int = field(default=3, metadata={"help": "M"})
    scaling: float = field(default=1.0, metadata={"help": "s"})


def fold(length: int, order: int) -> tuple[int, ...]:
    """Finds sides n_1 >= ... >= n_M, as equal as possible, of the smallest such tensor that holds `length` entries."""
    sides = []
    for remaining_sides in range(order, 0, -1):
        root = round(length ** (1 / remaining_sides))
        size = next(near for near in range(max(1, root - 1), root + 3) if near**remaining_sides >= length)
        sides.append(size)
        length = math.ceil(length / size)
    return tuple(sides)


class SuperLoraAdapter(JointAdapter):
    """The Tucker tensors of the groups; and, for one forward pass, the changes of all weights, unfolded from them."""

    def __init__(self, config: Any, stacks: dict[str, dict[str, Shape]]) -> None:
        super().__init__(config, stacks)
        self.scaling = config.scaling
        self.lengths = [d_out * d_in for d_out, d_in in self.shapes.values()]
        self.group = math.ceil(sum(self.lengths) / config.groups)
        sides = fold(self.group, config.order)
        if config.r > min(sides):
            raise ValueError(
                f"SuperLoRA's groups fold into {' x '.join(map(str, sides))}; the rank is at most {min(sides)}; got {config.r}"
            )
        self.cores = nn.ParameterList(parameter(*[config.r] * config.order) for _ in range(config.groups))
        self.factors = nn.ModuleList(
            nn.ParameterList(parameter(size, config.r) for size in sides) for _ in range(config.groups)
        )
        self.drop()

    def drop(self) -> None:
        self.changes: dict[str, Tensor] = {}
        self._made_with: list[tuple[Tensor, int]] = []

    @torch.no_grad()
    def reset(self) -> None:
        for core, factors in zip(self.cores, self.factors, strict=True):
            nn.init.zeros_(core)
            for factor in factors:  # type: ignore[attr-defined]
                nn.init.orthogonal_(factor)

    def prepare(self) -> None:
        first, weights = next(iter(self.changes.values()), None), list(self.parameters())
        if self.training and not torch.is_grad_enabled() and is_current(first, self._made_with, weights):
            return  # a checkpoint of an earlier pass may still run its layers again, with a graph
        groups = []
        for tensor, factors in zip(self.cores, self.factors, strict=True):
            for factor in factors:  # type: ignore[attr-defined]
                # Each product moves the first mode to the end, so after all modes the order is the original one.
                tensor = torch.tensordot(tensor, factor, dims=([0], [1]))
            groups.append(tensor.reshape(-1)[: self.group] * self.scaling)
        pieces = torch.cat(groups)[: sum(self.lengths)].split(self.lengths)
        self.changes = {path: piece.view(self.shapes[path]) for path, piece in zip(self.shapes, pieces, strict=True)}
        self._made_with = [] if torch.compiler.is_compiling() else versions(weights)

    def change(self, path: str, x: Tensor, y: Tensor) -> Tensor:
        if is_stale(self.changes.get(path), self._made_with, self.parameters()):
            with no_autocast(x.device):
                self.prepare()
        return F.linear(x, self.changes[path])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "changes": {}, "_made_with": []}


class SuperLoraModel(JointTuner):
    prefix = "superlora_"
    adapter_cls: ClassVar[type[JointAdapter]] = SuperLoraAdapter


@dataclass
class MiloraConfig(LoraConfig):
    """LoRA's configuration; `init_lora_weights` stays True."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType("MILORA")


class MiloraModel(LoraModel):
    """LoRA whose layers start at their minor singular components."""

    def inject_adapter(self, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any) -> None:
        super().inject_adapter(model, adapter_name, *args, **kwargs)
        for layer in model.modules():
            if isinstance(layer, LoraLayer) and adapter_name in layer.lora_A:
                start_minor(layer, adapter_name)


def start_minor(layer: Any, adapter_name: str) -> None:
    """Moves the minor singular components of the layer's weight into its adapter."""
    weight, rank = layer.get_base_layer().weight, layer.r[adapter_name]
    if weight.is_meta:
        return
    if not weight.is_floating_point():
        raise ValueError("MiLoRA takes components out of the base weights, which a quantized base does not allow; use LoRA")
    if rank > min(weight.shape):
        sides = " x ".join(map(str, weight.shape))
        raise ValueError(f"MiLoRA's rank is at most {min(weight.shape)} for a weight of {sides}; got {rank}")
    scale, matrix = layer.scaling[adapter_name], transpose(weight.data, layer.fan_in_fan_out).to(torch.float32)
    u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
    root = (s[-rank:] / scale).sqrt()
    a, b = (root[:, None] * vt[-rank:]).contiguous(), (u[:, -rank:] * root).contiguous()
    for part, start in ((layer.lora_A[adapter_name], a), (layer.lora_B[adapter_name], b)):  # which may be on the meta device
        part.weight = nn.Parameter(start, requires_grad=part.weight.requires_grad)
    residual = matrix - scale * b @ a
    layer.get_base_layer().weight.data = transpose(residual.to(weight.dtype), layer.fan_in_fan_out)
