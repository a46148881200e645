"""Saved adapters: PEFT's two files, written by any program, and `attach_adapter`, which puts all of one on its base or nothing.

A folder may come from a stranger: its regular expressions run in another process, with a time limit, before PEFT runs them.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, PeftType, PromptLearningConfig, get_peft_model_state_dict
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from craft.factors.hosvd import probes
from craft.models import quiet_libraries
from craft.words import format_bytes

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
BASIS_FILE = "basis.safetensors"
"""Sketches of the singular vectors between which an adapter's numbers stand, where PEFT saves no vectors."""
_VECTORS = {"_psoft_A_cache": 0, "_psoft_B_cache": 1, "tinylora_A": 0, "tinylora_B": 1, "frod_V": 1, "frod_U": 1}
"""PEFT's buffers of such vectors, which a new decomposition may give other signs; and the dimension that counts them."""
_ROUNDING = 0.02
"""Vectors of length one are the same if their sketches, of four numbers each, differ by so little."""
LONGEST, LARGEST = 16 * 2**20, 1e9
"""The most bytes of a configuration, and its largest number."""
PATTERN_SECONDS = 5.0
_PATTERNS = ("modules", "pattern", "target", "projection_map")
"""Parts of the names of fields whose texts are read as regular expressions."""
_RANKS = ("r", "init_r", "target_r", "rank_pattern", "bottleneck", "groups", "order")
_WRAPPERS = ("modules_to_save", "original_module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Parts of names in a training state that are in no saved adapter."""
_MATCH = r"""
import json, re, sys
patterns, names = json.load(sys.stdin)
for text in patterns:
    try:
        forms = [re.compile(form % text) for form in ("%s", r"(.*\.)?(%s)$", r"(?:^|.*?\.)%s\.(\d+)\.")]
    except (re.error, RecursionError, OverflowError) as error:
        sys.exit(f"{text[:80]!r} is no regular expression ({error})")
    for name in names:
        for form in forms:
            form.fullmatch(name), form.match(name)
"""
"""Matches patterns with names as PEFT does."""


def read_config(file: Path) -> dict[str, Any]:
    """Reads an adapter's configuration. Raises ValueError if it is none of PEFT's, or a field has a wrong type."""
    try:
        if (size := file.stat().st_size) > LONGEST:
            raise ValueError(f"it has {format_bytes(size)}")
        config = json.loads(file.read_text(encoding="utf-8"))
        kind = PeftType(config["peft_type"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file} is no configuration of PEFT: {error}") from error
    for name, reason in _wrong_fields(config, kind):
        value = json.dumps(config[name])
        text = f"{value[:77]}..." if len(value) > 80 else value
        raise ValueError(f"{file}: {name} is {text}, {reason}. Save the adapter again with a PEFT of today")
    return dict(config)


def _wrong_fields(config: Mapping[str, Any], kind: PeftType) -> Iterator[tuple[str, str]]:
    """Yields the names of fields with a wrong value, and why it is wrong."""
    declared = PEFT_TYPE_TO_CONFIG_MAPPING[kind]
    hints = declared_types(declared)
    for name, value in config.items():
        steps = isinstance(value, str) and re.fullmatch(r"pissa_niter_\d{1,3}", value)  # PEFT takes it and does not declare it
        known = name in declared.__dataclass_fields__
        if not known or value == getattr(declared, name, None) or (steps and name == "init_lora_weights"):
            continue
        if reason := wrong_type(name, hints.get(name, Any), value):
            yield name, f"which PEFT does not take ({reason[:1].lower()}{reason[1:]})"
        numbers = list(value.values()) if isinstance(value, dict) else [value]
        if name in ("rank_pattern", "alpha_pattern") and any(type(number) not in (int, float) for number in numbers):
            yield name, "which is not a number for each pattern"
        if any(type(number) in (int, float) and not abs(number) <= LARGEST for number in numbers):
            yield name, f"which is not a number up to {LARGEST:g}"


def wrong_type(name: str, hint: Any, value: Any) -> str | None:
    """Says why plain data do not have the type that PEFT declares for a field; None if they have, or pydantic cannot tell."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

    hint = float | int if "alpha" in name and hint is int else hint
    own = isinstance(hint, type) and hasattr(hint, "__dataclass_fields__")
    try:
        adapter = TypeAdapter(hint, config=None if own else ConfigDict(arbitrary_types_allowed=True))
        adapter.validate_json(json.dumps(value), strict=True)
    except PydanticUserError:
        return None
    except ValidationError as error:
        return error.errors()[0]["msg"]
    except (RecursionError, TypeError) as error:
        return "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return None


def declared_types(config: Any) -> dict[str, Any]:
    """Returns the types that are declared for the fields of a configuration class.

    There are none where one of them is imported for type checkers alone; PEFT itself has no such class.
    """
    try:
        return typing.get_type_hints(config)
    except NameError:
        return {}


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of an adapter's weights, by name. Raises ValueError if the file is damaged or not written by PEFT."""
    file = folder / WEIGHTS_FILE
    try:
        with safe_open(file, "pt") as weights:
            shapes = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError, MemoryError) as error:
        if os.strerror(errno.ENOMEM) in str(error):
            raise ValueError(
                f"{file} has {format_bytes(file.stat().st_size)}, for which there is no memory here. An adapter has a few MiB: "
                "copy it again from where it was trained"
            ) from error
        raise ValueError(f"{file} is damaged ({error}); copy it again from where the adapter was trained") from error
    wrappers = {part for name in shapes for part in name.split(".") if part in _WRAPPERS}
    wrappers |= {name.split(".")[0] for name in shapes if not name.startswith("base_model.")}
    if wrappers:
        raise ValueError(_describe_wrappers(folder, sorted(wrappers)))
    return shapes


def attach_adapter(model: nn.Module, folder: Path, base: str, *, trains: bool = False) -> PeftModel:
    """Puts a saved adapter of PEFT on its base model, called `base` in errors: all of its weights, or ValueError."""
    config = read_config(folder / CONFIG_FILE)
    prompts = issubclass(PEFT_TYPE_TO_CONFIG_MAPPING[PeftType(config["peft_type"])], PromptLearningConfig)
    advice = "Give the base model that it was trained on as --base"
    shapes = {} if prompts else read_shapes(folder)
    check_ranks(folder, config, shapes)
    check_patterns(folder, config, [name for name, _ in model.named_modules()])
    try:
        with quiet_libraries():
            loaded = PeftModel.from_pretrained(model, str(folder), is_trainable=trains)
            parts = get_peft_model_state_dict(loaded, save_embedding_layers=False).keys()
            take_basis(loaded, folder)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of many kinds, as PEFT checks little of what it reads
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"the adapter in {folder} does not fit {base}: {reason}. {advice}") from error
    if prompts:
        return loaded
    prefix = getattr(loaded.base_model, "prefix", "adaption_")  # PEFT's adaption prompts alone declare none
    of_base = {name for name in loaded.state_dict() if f".{prefix}" not in name}
    lacking, surplus = sorted(parts - shapes.keys()), sorted(shapes.keys() - parts - of_base)
    if wrappers := find_wrappers(lacking, surplus):
        raise ValueError(_describe_wrappers(folder, wrappers))
    if surplus:
        modules = list(dict.fromkeys(name.removeprefix("base_model.model.").split(f".{prefix}")[0] for name in surplus))
        raise ValueError(
            f"the adapter in {folder} has {len(surplus)} weights for modules that {base} lacks, or that {CONFIG_FILE} does not "
            f"name: {', '.join(modules[:3])}{f' and {len(modules) - 3} more' if modules[3:] else ''}. {advice}"
        )
    if lacking:
        named = f"{', '.join(lacking[:2])}{', ...' if lacking[2:] else ''}"
        raise ValueError(f"the adapter in {folder} has no weights for {len(lacking)} parts of {base} ({named}). {advice}")
    return loaded


def save_basis(model: nn.Module, folder: Path) -> None:
    """Writes what `take_basis` needs, if the model's adapter has such a basis."""
    if sketches := {name: _sketch(vectors).half() for name, vectors in _basis(model).items()}:
        save_file(sketches, folder / BASIS_FILE)


def take_basis(model: nn.Module, folder: Path) -> None:
    """Gives the vectors of the adapter's basis the signs that they had when `folder` was written.

    Raises ValueError if they differ by more than signs: then the adapter's numbers have no meaning here.
    """
    basis = _basis(model)
    for name, expected in (load_file(folder / BASIS_FILE) if (folder / BASIS_FILE).is_file() else {}).items():
        actual, expected = _sketch(basis[name]), expected.double()
        signs = torch.where((actual * expected).sum(1, keepdim=True) < 0, -1.0, 1.0)
        if not (signs * actual - expected).abs().max() <= _ROUNDING:
            raise ValueError(
                f"the numbers in {folder} stand between singular vectors, and {name} came out otherwise here than where they "
                "were trained: from other weights, or by other routines. There, --as lora writes an adapter that needs none"
            )
        basis[name].mul_(signs.to(basis[name]))


def _basis(model: nn.Module) -> dict[str, Tensor]:
    """Returns the vectors of each buffer as the rows of a view."""
    buffers = [(name, part) for name, _ in model.named_buffers() for part in name.split(".") if part in _VECTORS]
    return {name: model.get_buffer(name).movedim(_VECTORS[part], 0) for name, part in buffers}


def _sketch(vectors: Tensor) -> Tensor:
    return nn.functional.normalize(vectors.detach().to("cpu", torch.float64)) @ probes(vectors.shape[1]).T


def check_ranks(folder: Path, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ValueError if the configuration has a larger rank than the stored weights: PEFT would allocate it first."""
    kind, largest = config["peft_type"], max((size for shape in shapes.values() for size in shape), default=LARGEST)
    most: dict[str, float] = {"groups": len(shapes), "order": max(map(len, shapes.values()), default=0)}
    if kind == "LORETTA":  # its weights have the factors of the bottleneck as sizes, three at most
        most["bottleneck"] = largest**3
    declared = PEFT_TYPE_TO_CONFIG_MAPPING[PeftType(kind)].__dataclass_fields__
    for name in [name for name in _RANKS if name in declared and kind != "LOKR"]:  # its rank may exceed every weight
        value = config.get(name) or 0
        rank = max(value.values()) if isinstance(value, dict) else value
        if rank > most.get(name, largest):
            raise ValueError(
                f"{folder / CONFIG_FILE}: {name} is {rank:,}, which is more than {WEIGHTS_FILE} holds: one of the two files is "
                "of another adapter"
            )


def check_patterns(folder: Path, config: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises ValueError if a regular expression in the configuration is none, or takes too long on names of modules."""
    fields = [value for field, value in config.items() if any(part in field for part in _PATTERNS)]
    patterns = sorted({text for value in fields for text in _texts(value) if re.search(r"[^\w.\- ]", text)})
    if not patterns:
        return
    command, rows = [sys.executable, "-I", "-S", "-c", _MATCH], json.dumps([patterns, list(names)])
    try:
        child = subprocess.run(command, input=rows, capture_output=True, text=True, timeout=PATTERN_SECONDS, check=False)
        reason = child.stderr.strip().rpartition("\n")[2] if child.returncode else ""
    except subprocess.TimeoutExpired:
        reason = f"they take over {PATTERN_SECONDS:g} s on the names of modules"
    if reason:
        file = folder / CONFIG_FILE
        raise ValueError(f"{file}: its regular expressions cannot be used: {reason}. Name the modules instead")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in (*value, *(value.values() if isinstance(value, dict) else ())):
            yield from _texts(item)


def find_wrappers(lacking: Iterable[str], surplus: Iterable[str]) -> list[str]:
    """Returns the parts that names have and PEFT's names of the same weights lack, such as the adapter's name."""
    more: dict[str, None] = {}
    names = [name.split(".") for name in lacking]
    for parts in (name.split(".") for name in surplus):
        for expected in names:
            remaining = iter(parts)
            if len(parts) > len(expected) and all(part in remaining for part in expected):
                more |= dict.fromkeys(part for part in parts if part not in expected)
                break
    return list(more)


def _describe_wrappers(folder: Path, wrappers: list[str]) -> str:
    named = ", ".join(f"`{part}`" for part in wrappers[:4])
    return (
        f"{folder / WEIGHTS_FILE} has the names of a training state and not PEFT's: they hold {named}. Load it into the model "
        "that it was trained in, and save the adapter by model.save_pretrained(folder)"
    )
