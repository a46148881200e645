"""`Method`: what one row of METHODS is, and what its `build` is given; the fields and the builders that rows share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field, WithJsonSchema

from craft.methods.cutting import Cutting
from craft.results import Unavailable
from craft.settings import Projections, Settings

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
"""Learning rates that fit matrices that start at zero, and cores between frozen factors."""
LOW_RATES, HIGH_RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3), (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""Learning rates that fit whole weights; and few numbers, such as scales and coefficients."""
WIDTH, FALLS = 768, 0.78
"""The best rates of LoRA fall with the hidden size like its power -FALLS: 35 models with a width of 2,048 and more, and MiniLM
(docs/methods.md). A method's `rate` is that of WIDTH."""
LEAST_WIDTH = 256
"""Narrower models get the rate of this width: there is no record of one."""


@dataclass(frozen=True)
class Method:
    """One row of METHODS.

    Attributes:
        reference: the paper, as `authors year, arXiv id`.
        build: `build(model, parameters, context)` puts the method on a transformers model and returns the model that
            trains. It works on the meta device too, so that parameters are counted without weights.
        label: a short text of the parameters that matter, in parts between ", " (`64, q v`); a plan makes equal ones differ.
        requires: `"cuda"` where the method runs on a GPU only; see `refuse_elsewhere`.
        quantization: the arguments of transformers' `BitsAndBytesConfig`; the base has the run's precision if absent.
        base_bytes: bytes per number of a quantized linear layer, for estimates.
        resolve: `resolve(model, parameters)` gives plain data that are equal for parameters with the same meaning on `model`
            (`all` and the number of layers); absent if only equal parameters have the same meaning.
        optimizer: `optimizer(model, groups, parameters, context)` makes the optimizer of a method that needs its own; AdamW
            if absent. It keeps everything that it remembers in its `state`, so that a resumed run continues unchanged.
        decays_to_start: whether weight decay pulls the adapter's weights to where they start, because with zeros in their place
            the model would not be the base model.
        master_weights: whether weights of the base model train. They are float32 under every precision, because most steps of
            a small learning rate are smaller than bfloat16 can add to a weight.
        copies: how many copies of an adapted module's input, and of its output, the backward pass keeps in addition to
            what the base keeps, for estimates.
        adapts: whether it trains more than the task head, which has a learning rate of its own.
        describe: `describe(model)` gives numbers about the trained model that only this method has, kept with its scores.
        cutting: how its adapters are cut to fewer parameters; absent where what they learn is no product that an SVD could cut.
        rates: the learning rates that `compare: fair` tries unless the file gives others.
        rate: `rate(parameters)` gives the learning rate at which a run begins on a model of hidden size WIDTH, from the records
            under docs/measurements; absent where none has the method, which then begins at the middle of `rates`.
        one_rate: parameters under which one learning rate serves all ranks; absent where that is not known.
    """

    name: str
    title: str
    reference: str
    parameters: type[Settings]
    build: Callable[[nn.Module, Any, BuildContext], nn.Module]
    label: Callable[[Any], str]
    requires: str | None = None
    packages: tuple[str, ...] = ()
    quantization: dict[str, Any] | None = None
    base_bytes: float | None = None
    resolve: Callable[[nn.Module, Any], Any] | None = None
    optimizer: Callable[[nn.Module, list[dict[str, Any]], Any, BuildContext], Optimizer] | None = None
    decays_to_start: bool = False
    master_weights: bool = False
    copies: tuple[int, int] = (1, 0)
    adapts: bool = True
    describe: Callable[[nn.Module], dict[str, float]] | None = None
    cutting: Cutting | None = None
    rates: tuple[float, ...] = RATES
    rate: Callable[[Any], float] | None = None
    rank: str | None = None
    one_rate: Mapping[str, Any] | None = None

    def text(self, parameters: Any) -> str:
        """Returns `label` with the layers, if they are not all: `r8, q v, top 3`."""
        layers = getattr(parameters, "layers", None)
        said = f"top {layers}" if isinstance(layers, int) else f"layers {' '.join(map(str, layers or ()))}"
        return ", ".join([*filter(None, [self.label(parameters)]), *([said] if layers is not None else [])])


@dataclass(frozen=True)
class BuildContext:
    """What a builder may need in addition to parameters: `task_type` is PEFT's word (SEQ_CLS, CAUSAL_LM)."""

    task_type: str
    seed: int = 0
    total_steps: int | None = None


def starting_rate(method: Method, parameters: Any, width: int) -> float:
    """Returns the learning rate of a run that is given none, to two digits, on a model of hidden size `width`."""
    if method.rate is None:
        return method.rates[len(method.rates) // 2]
    return float(f"{method.rate(parameters) * (WIDTH / max(width, LEAST_WIDTH)) ** FALLS:.1e}")


def refuse_elsewhere(method: Method) -> None:
    """Raises Unavailable if this machine cannot run `method`: there is no CUDA device, or a package is missing."""
    from importlib.util import find_spec

    absent = [name for name in method.packages if find_spec(name) is None]
    if method.requires == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise Unavailable(
                f"method {method.name} runs on a CUDA GPU only, and this machine has none that torch can use. "
                "Run it on one that has, or take another method (lora has the same parameters, over a base of full precision)"
            )
    if absent:
        raise Unavailable(
            f"method {method.name} needs {', '.join(absent)}, not installed here: pip install {' '.join(absent)} "
            "(or this project's extra [gpu])"
        )


def _layers(value: Any) -> int | tuple[int, ...]:
    top = re.fullmatch(r"top (\d+)", value) if isinstance(value, str) else None
    count = int(top[1]) if top else value
    if isinstance(count, int) and not isinstance(count, bool) and count > 0:
        return count
    numbers = tuple(value) if isinstance(value, list | tuple) else ()
    if not numbers or len({*numbers}) != len(numbers) or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"the last layers, `top 3`, or the numbers of layers from 0, each once, [4, 5]; got {value!r}")
    return tuple(sorted(numbers))


Layers = Annotated[
    int | tuple[int, ...],
    BeforeValidator(_layers),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^top \d+$"},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
            ]
        }
    ),
]
"""The layers that a method adapts: the last so many, or those of these numbers."""


def layers_field() -> Any:
    """Makes the field `layers`, which is None, and not written, where all layers are adapted."""
    return Field(
        None,
        exclude_if=lambda layers: layers is None,
        description="Adapted layers: a number of last ones (`3` or `top 3`), or a list of numbers from 0 (`[4, 5]`); else all.",
    )


class Projected(Settings):
    """Parameters of a method that adapts the chosen projections of all layers, or of some."""

    projections: Projections = Field(
        ("q", "v"), min_length=1, description="Adapted projections: q, k, v, o, and the MLP's gate, up, down."
    )
    layers: Layers | None = layers_field()


def rank_field(default: int, description: str) -> Any:
    """Makes the field of a rank; files may also write it as PEFT does, `r`."""
    return Field(default, gt=0, validation_alias=AliasChoices("rank", "r"), description=description)


def dropout_field(pefts: str) -> Any:
    """Makes the field of the dropout of the adapter's input; files may also write it by PEFT's name."""
    names = AliasChoices("dropout", pefts)
    return Field(0.0, ge=0, lt=1, validation_alias=names, description="Dropout of the adapter's input.")


def rank_label(parameters: Any) -> str:
    """Makes a label such as `r8, q v`."""
    return f"r{parameters.rank}, {' '.join(parameters.projections)}"


_WIDER = frozenset({"VERA", "SUPERLORA"})
"""Tuners whose rank is not that of a matrix within one weight: VeRA's is of a random pair that all layers share, SuperLoRA's of
a tensor of another shape."""


def attach(model: nn.Module, context: BuildContext, kind: str, parameters: Projected, **settings: Any) -> nn.Module:
    """Puts a PEFT method on `model`, where `parameters` say: PEFT's name of it (`VERA`), or a row of `craft.TUNERS`."""
    import peft

    from craft.models.loading import head_names
    from craft.models.projections import linear_modules, target_modules

    targets = target_modules(model, parameters.projections, parameters.layers)
    rank = settings.get("r", settings.get("init_r"))
    if rank is not None and kind not in _WIDER:
        ends = tuple(f".{target}" for target in targets)
        most = min(min(shape) for path, shape in linear_modules(model).items() if f".{path}".endswith(ends))
        if rank > most:
            raise ValueError(f"rank {rank} is more than the smaller side of an adapted weight; at most {most} here")
    # PEFT itself trains heads of the names `classifier` and `score` alone.
    trained = [*head_names(model), *settings.pop("modules_to_save", ())] or None
    config = {"peft_type": kind, "task_type": context.task_type, "target_modules": targets, "modules_to_save": trained}
    return make_peft_model(model, peft.get_peft_config(config | settings))


_PAST_HOOKS = ("ADALORA", "ADAPTION_PROMPT")
"""PEFT's types whose tuner calls the base's `forward` and not the base, which leaves out its hooks: autocast and FSDP's."""


def make_peft_model(model: nn.Module, config: Any) -> nn.Module:
    """Returns PEFT's model of `model` with the adapter of a configuration, which calls `model` with its hooks."""
    import peft

    put: Any = peft.get_peft_model
    adapted = put(model, config)
    if str(config.peft_type).removeprefix("PeftType.") in _PAST_HOOKS:
        object.__setattr__(adapted.base_model, "forward", model.__call__)  # an attribute, not a submodule
    return adapted


def attaches(
    kind: str, fixed: Mapping[str, Any] | None = None, **fields: str
) -> Callable[[nn.Module, Any, BuildContext], nn.Module]:
    """Makes a builder that calls `attach` with `fixed` settings, and with `fields`: PEFT's name -> the parameter's."""

    def build(model: nn.Module, parameters: Any, context: BuildContext) -> nn.Module:
        settings = {theirs: getattr(parameters, ours) for theirs, ours in fields.items()}
        return attach(model, context, kind, parameters, **settings, **(fixed or {}))

    return build


def refuse_olora(model: nn.Module) -> None:
    """Raises ValueError for a model that PEFT's OLoRA would start as another one, or fail on: GPT-2 and its kin."""
    from transformers.pytorch_utils import Conv1D

    if any(isinstance(module, Conv1D) for module in model.modules()):
        raise ValueError(
            f"PEFT's OLoRA reads a weight as (d_out, d_in), and {type(model).__name__} keeps it as (d_in, d_out); take pissa"
        )


def is_meta(model: nn.Module) -> bool:
    """Says whether `model` has shapes without weights, so that nothing can be computed from them."""
    return any(weight.is_meta for weight in model.parameters())
