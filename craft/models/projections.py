"""Finds the projections of a model: the words q, k, v, o, gate, up, down as places.

CRAFT stacks the L weights of a word into one tensor; LoRA and similar methods adapt each alone. Modules whose path without its
digits differs (an encoder's, a decoder's, a cross attention's q) or whose shapes differ are different stacks.

LAYOUTS say where transformers keep their projections. A model has the first layout whose `q` and `down` it has; else the
attention of the first whose `q` and `o` it has: experts of a mixture are no linear modules. A layout maps a word to the end of
the module's path (a regular expression). `pattern[i/n]` is the i-th of n equal parts of a fused module's outputs:
`transformer.h.3.attn.c_attn[0/3]` is q of GPT-2, outputs 0 to d of 3 d.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from craft.words import list_some, nearest

WORDS = ("q", "k", "v", "o", "gate", "up", "down")


def _layout(attention: str, of_attention: str, mlp: str, of_mlp: str) -> Mapping[str, str]:
    """Makes a layout of two paths with the ends behind each: those of q, k, v, o; those of gate (if any), up, down."""
    places = [*(attention + end for end in of_attention.split()), *(mlp + end for end in of_mlp.split())]
    projections = WORDS if len(places) == len(WORDS) else [word for word in WORDS if word != "gate"]
    return dict(zip(projections, places, strict=True))


_BERT_MLP = r"intermediate\.dense layer\.\d+\.output\.dense"
LAYOUTS = (
    _layout(r"attention\.", r"self\.query self\.key self\.value output\.dense", "", _BERT_MLP),  # BERT, RoBERTa
    _layout(r"self_attn\.", "q_proj k_proj v_proj o_proj", r"mlp\.", "gate_proj up_proj down_proj"),  # LLaMA
    _layout(r"(?:self|encoder)_attn\.", "q_proj k_proj v_proj out_proj", "", "fc1 fc2"),  # OPT, BART
    _layout(r"attention\.", "q_lin k_lin v_lin out_lin", r"ffn\.", "lin1 lin2"),  # DistilBERT
    _layout(r"attn\.", "c_attn[0/3] c_attn[1/3] c_attn[2/3] c_proj", r"mlp\.", "c_fc c_proj"),  # GPT-2
    _layout(r"(?:SelfAttention|EncDecAttention)\.", "q k v o", r"DenseReluDense\.", "wi_0 wi(?:_1)? wo"),  # T5
    _layout(r"attention\.", r"attn\.q attn\.k attn\.v attn\.o", "", _BERT_MLP),  # MPNet
    _layout(r"attn\.", "Wqkv[0/3] Wqkv[1/3] Wqkv[2/3] Wo", r"mlp\.", "Wi[0/2] Wi[1/2] Wo"),  # ModernBERT
    _layout(r"attention\.", r"self\.query_proj self\.key_proj self\.value_proj output\.dense", "", _BERT_MLP),  # DeBERTa
    _layout(r"self_attn\.", "q_proj k_proj v_proj out_proj", r"feed_forward\.", "w1 w3 w2"),  # LFM2
)


def find_layout(paths: Iterable[str]) -> Mapping[str, str]:
    """Finds the layout of a model by the paths of its linear modules; an empty one if none of LAYOUTS fits."""
    paths = list(paths)
    for marks, words in ((("q", "down"), WORDS), (("q", "o"), WORDS[:4])):
        for layout in LAYOUTS:
            if all(any(ends(path, layout[mark]) for path in paths) for mark in marks):
                return {word: layout[word] for word in words if word in layout}
    return {}


def ends(path: str, pattern: str) -> bool:
    """Returns whether a module's path ends as a pattern, without its part of a fused module, says."""
    return re.search(rf"(?:^|\.)(?:{pattern.partition('[')[0]})$", path) is not None


@dataclass(frozen=True)
class Located:
    """One layer's weight of a projection: outputs `start` to `stop` of the module's, which are all unless it is fused."""

    module_name: str
    start: int
    stop: int
    outputs: int
    inputs: int

    @property
    def shape(self) -> tuple[int, int]:
        """(d_out, d_in)."""
        return self.stop - self.start, self.inputs


Stacks = dict[str, list[Located]]


def find_projections(
    model: nn.Module,
    names: Sequence[str],
    mapping: Mapping[str, str] | None = None,
    layers: int | Sequence[int] | None = None,
) -> Stacks:
    """Finds the stacks of the projections `names`, in the order of the names; layers in the model's order.

    `layers` leaves the last so many layers of each stack, or those of these numbers.

    A stack's name is the word, with the path behind it where a word has several stacks. `mapping` is word -> end of the module
    path (a regular expression, with `[i/n]` for a fused part). Its words come before those of the model (`load_model`), and
    these before its layout's; a model without a known layout needs one.
    """
    if not names:
        raise ValueError(f"no projections given; choose among {', '.join(WORDS)}")
    unread = other_senses(model)
    linear = {path: shape for path, shape in linear_modules(model).items() if not path.startswith(unread)}
    mapping = {**getattr(model, "craft_projection_map", {}), **(mapping or {})}
    layout, needed = find_layout(linear), [name for name in names if name not in mapping]
    if needed and not layout:
        raise ValueError(
            f"the places of {', '.join(needed)} in {_called(model)} are not known: it has none of the {len(LAYOUTS)} layouts "
            f"that are. Name them with projection_map, such as {{'q': 'attention.wq', 'v': 'attention.wv'}}. {_found(linear)}"
        )
    patterns = {**layout, **mapping}
    stacks: Stacks = {}
    for name in names:
        if name not in patterns:
            raise ValueError(
                f"{_called(model)} has no projection {name!r}.{nearest(name, patterns)} It has {', '.join(patterns)}; "
                f"others can be named with projection_map. {_found(linear)}"
            )
        pattern, part, parts = _parse(patterns[name])
        paths = [key for key in linear if re.search(rf"(?:^|\.)(?:{pattern})$", key)]
        if not paths:
            raise ValueError(
                f"projection {name!r} is looked for at {patterns[name]!r}, but no linear module of {_called(model)} has such a "
                f"path. {_found(linear)}"
            )
        stacks.update(_grouped(name, [_located(key, linear[key], part, parts) for key in paths]))
    return stacks if layers is None else {name: _chosen(name, stack, layers) for name, stack in stacks.items()}


def _chosen(name: str, stack: list[Located], layers: int | Sequence[int]) -> list[Located]:
    """Returns the places of a stack in the last so many layers, or in those of these numbers."""
    there = sorted({layer_number(place.module_name) for place in stack})
    numbers = there[-layers:] if isinstance(layers, int) else layers
    if (isinstance(layers, int) and layers > len(there)) or not {*numbers} <= {*there}:
        asked = f"the last {layers}" if isinstance(layers, int) else ", ".join(map(str, layers))
        raise ValueError(f"layers: {asked} asked for, and the model has {name!r} in {len(there)}: {there[0]} to {there[-1]}")
    return [place for place in stack if layer_number(place.module_name) in numbers]


def layer_number(path: str) -> int:
    """Returns the number of the layer in a module's path, the first number there; -1 outside the layers."""
    return next((int(part) for part in path.split(".") if part.isdigit()), -1)


def find_targets(model: nn.Module, matches: Callable[[str], object]) -> Stacks:
    """Finds the stacks of the linear modules whose path `matches`, grouped by path without digits and by shape."""
    linear = linear_modules(model)
    groups: dict[str, list[Located]] = {}
    for key, module in model.named_modules():
        if not key or "base_layer" in key.split(".") or not matches(key):
            continue
        if key not in linear:
            raise ValueError(
                f"target_modules fit {key}, a {type(module).__name__}, and only linear modules are adapted. Name those, or "
                f"leave this one out with exclude_modules. {_found(linear)}"
            )
        groups.setdefault(_without_digits(key), []).append(_located(key, linear[key], 0, 1))
    if not groups:
        # PEFT registers our tuners, which need this module, as soon as it is imported.
        from peft import NoMatchingPeftModuleError

        raise NoMatchingPeftModuleError(
            f"target_modules fit no linear module of {_called(model)}, or exclude_modules and modules_to_save leave out all "
            f"that they fit. {_found(linear)}"
        )
    stacks: Stacks = {}
    for path, layers in groups.items():
        end = _shortest_end(path, [other for other in groups if other != path])
        stacks.update(_grouped(end.replace(".", "-"), layers))
    return stacks


def target_modules(model: nn.Module, names: Sequence[str], layers: int | Sequence[int] | None = None) -> list[str]:
    """Lists the module names that a per-layer method (LoRA and similar ones) adapts for the projections `names`
    in `layers`.

    A name is the end of a path, as short as possible without naming another module, or a whole path where no end is unique.
    A fused module that holds one of the projections is named whole.
    """
    stacks = find_projections(model, names, layers=layers)
    paths = dict.fromkeys(layer.module_name for stack in stacks.values() for layer in stack)
    not_adapted = [name for name, _ in model.named_modules() if name not in paths]
    ends = {path: _shortest_end(path, not_adapted) for path in paths}
    return [*dict.fromkeys(path if layer_number(end) >= 0 else end for path, end in ends.items())]


def other_senses(model: nn.Module) -> tuple[str, ...]:
    """Returns the paths, up to their last dot, of the parts of a text model that read images or sounds."""
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        return ()
    parts = ((name, part.config) for name, part in model.named_modules() if name and isinstance(part, PreTrainedModel))
    return tuple(f"{name}." for name, config in parts if type(config).__name__.endswith(("VisionConfig", "AudioConfig")))


def linear_modules(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Maps the path of every linear map, quantized or not, to (d_out, d_in); the insides of adapters are left out."""
    shapes: dict[str, tuple[int, int]] = {}
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if not name or (inside and name.startswith(inside)):
            continue
        if hasattr(module, "base_layer"):
            inside += (name + ".",)
            while hasattr(module, "base_layer"):
                module = module.base_layer
        shape = _shape(module)
        if shape is not None:
            shapes[name] = shape
    return shapes


def _shape(module: nn.Module) -> tuple[int, int] | None:
    if isinstance(module, Conv1D):
        inputs, outputs = module.weight.shape
        return outputs, inputs
    if isinstance(module, nn.Bilinear | nn.MultiheadAttention):
        return None
    widths = getattr(module, "out_features", None), getattr(module, "in_features", None)
    if hasattr(module, "weight") and isinstance(widths[0], int) and isinstance(widths[1], int):
        return widths[0], widths[1]
    return None


def _parse(pattern: str) -> tuple[str, int, int]:
    fused = re.fullmatch(r"(.*)\[(\d+)/(\d+)\]", pattern)
    if not fused:
        return pattern, 0, 1
    part, parts = int(fused[2]), int(fused[3])
    if part >= parts:
        raise ValueError(f"{pattern!r} asks for part {part} of {parts}; parts count from 0 to {parts - 1}")
    return fused[1], part, parts


def _located(name: str, shape: tuple[int, int], part: int, parts: int) -> Located:
    outputs, inputs = shape
    if outputs % parts:
        raise ValueError(f"{name} has {outputs} outputs, which do not fall into {parts} equal parts")
    width = outputs // parts
    return Located(name, part * width, (part + 1) * width, outputs, inputs)


def _grouped(word: str, layers: list[Located]) -> Stacks:
    groups: dict[tuple[str, tuple[int, int]], list[Located]] = {}
    for layer in layers:
        groups.setdefault((_without_digits(layer.module_name), layer.shape), []).append(layer)
    if len(groups) == 1:
        return {word: layers}
    paths = [path for path, _ in groups]
    named: Stacks = {}
    for (path, shape), group in groups.items():
        name = f"{word}-{path.replace('.', '-')}" if len(set(paths)) > 1 else word
        named[name if paths.count(path) == 1 else f"{name}-{shape[0]}x{shape[1]}"] = group
    return named


def _without_digits(path: str) -> str:
    return ".".join(word for word in path.split(".") if not word.isdigit())


def _shortest_end(path: str, other_paths: Sequence[str]) -> str:
    """Returns the shortest end of a path that is the end of no other; the whole path if each is."""
    parts = path.split(".")
    ends = (".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1))
    return next((end for end in ends if not any(f".{other}".endswith(f".{end}") for other in other_paths)), path)


def _called(model: nn.Module) -> str:
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return f"{type(model).__name__} (model_type {kind!r})" if kind else type(model).__name__


def _found(linear: Iterable[str]) -> str:
    paths = list(dict.fromkeys(_without_digits(key) for key in linear))
    return f"Linear modules found, layer numbers left out: {list_some(paths, 24) or 'none'}."
