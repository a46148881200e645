"""What an adapter changes in each module of its base model, as singular values; and a LoRA with them.

    change of a module  =  U diag(s) Vᵀ            LoRA: s B A, thin          all others: merged weights less the base's

The LoRA has the same modules and a scale of 1: it loads with plain PEFT, and where LoRA is served.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

from craft.audit.folder import Folder
from craft.factors.low_rank import Spectrum, product_svd
from craft.methods.cutting import PREFIX, write_products
from craft.models.adapters import CONFIG_FILE, WEIGHTS_FILE
from craft.models.loading import head_names, is_head
from craft.trainer.checkpoint import write_folder
from craft.tuners.craft.layer import CraftLinear

NOISE = 1e-6
"""Singular values up to this share of the largest may be rounding errors of float32."""
ACCURACY, ROUNDING = 0.01, 1e-5
"""So far outputs of an adapter and of a LoRA with its change may differ: shares of what it changes, and of the largest."""
_COPIED = (".json", ".txt", ".model", ".jinja")
_NOT_COPIED = (CONFIG_FILE, "trainer_state.json", "run.json", "manifest.json")


@dataclass(frozen=True)
class Changes:
    """U, s, Vᵀ of the change of each module, by its name in the base model; the adapter's `parameters` without a task head.

    `transposed`: the base keeps weights as (d_in, d_out).
    """

    spectra: Mapping[str, Spectrum]
    parameters: int
    transposed: bool

    @property
    def values(self) -> dict[str, torch.Tensor]:
        return {name: s for name, (_, s, _) in self.spectra.items()}

    @property
    def ranks(self) -> dict[str, int]:
        return {name: len(s) for name, s in self.values.items()}

    def shares(self) -> dict[str, float]:
        """Returns each module's share of the squared singular values."""
        squares = {name: float((s**2).sum()) for name, s in self.values.items()}
        total = sum(squares.values()) or 1.0
        return {name: square / total for name, square in squares.items()}


def changes_of(model: Any, original: nn.Module | None = None) -> Changes:
    """Returns the changes of a PEFT model's adapter. Where its base does not have the weights that are stored (PiSSA, OLoRA),
    `original` is the base that has them."""
    heads = head_names(model)
    if modules := [name for name, _ in _copies(model.get_base_model()) if not is_head(name, heads)]:
        named = f"{', '.join(modules[:3])}{f' and {len(modules) - 3} more' if modules[3:] else ''}"
        raise ValueError(f"the adapter trains whole modules of its base (modules_to_save: {named}), which no SVD makes smaller")
    spectra, transposed = dict[str, Spectrum](), False
    for name, layer in _layers(model):
        base = layer.get_base_layer()
        if not isinstance(base, nn.Linear | Conv1D):
            raise ValueError(f"the adapter changes {name} ({type(base).__name__}); linear layers alone are cut")
        transposed |= isinstance(base, Conv1D)
        stored_weight = original.get_parameter(f"{name}.weight").data.to(base.weight.device) if original is not None else None
        try:
            with torch.no_grad():
                u, s, vt = _spectrum(layer, isinstance(base, Conv1D), stored_weight)
        except torch.linalg.LinAlgError as error:
            raise ValueError(
                f"the adapter's weights of {name} are no numbers (NaN or infinite): its training diverged"
            ) from error
        except NotImplementedError as error:
            raise ValueError(f"the adapter is no change of weights that can be merged: {error}") from error
        sound = int((s > NOISE * s.max()).sum()) if len(s) and s.max() > 0 else 0
        spectra[name] = u[:, :sound].cpu(), s[:sound].cpu(), vt[:sound].cpu()
    if not any(len(s) for _, s, _ in spectra.values()):
        raise ValueError("the adapter changes no weight: it was not trained, or its weights are zeros")
    copies = {id(weight) for _, part in _copies(model) for weight in part.parameters()}
    model.set_requires_grad(model.active_adapter, requires_grad=True)
    trained = (weight for weight in model.parameters() if weight.requires_grad and id(weight) not in copies)
    return Changes(spectra, sum(weight.numel() for weight in trained), transposed)


def _layers(model: Any) -> Iterator[tuple[str, BaseTunerLayer]]:
    for name, module in model.get_base_model().named_modules():
        if isinstance(module, BaseTunerLayer) and not isinstance(module, ModulesToSaveWrapper):
            yield name, module


def switch(model: Any, on: bool) -> None:
    """Switches the adapter's change of weights on or off. The task head stays as it was trained."""
    for _, layer in _layers(model):
        layer.enable_adapters(on)


def _copies(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Returns the modules that the adapter has copied and trains whole, such as a task head."""
    return [(name, part) for name, part in model.named_modules() if isinstance(part, ModulesToSaveWrapper)]


def _spectrum(layer: Any, transposed: bool, stored_weight: torch.Tensor | None) -> Spectrum:
    (adapter,) = layer.active_adapters
    plain = isinstance(layer, LoraLayer) and isinstance(layer.lora_A, nn.ModuleDict) and adapter not in layer.lora_variant
    if plain and stored_weight is None:
        b, a = (getattr(layer, name)[adapter].weight for name in ("lora_B", "lora_A"))
        return product_svd(b, a, layer.scaling[adapter])
    if isinstance(layer, CraftLinear):
        change = layer.get_delta_weight(adapter).double()  # merged into weights in bfloat16 it would be rounded
    else:
        base = layer.get_base_layer()
        current_weight = base.weight.data.clone()
        layer.merge(safe_merge=False, adapter_names=[adapter])
        change = base.weight.data.double() - (current_weight if stored_weight is None else stored_weight).double()
        layer.merged_adapters.clear()
        base.weight.data = current_weight
    u, s, vt = torch.linalg.svd(change.T if transposed else change, full_matrices=False)
    # B A less its start has no more; what is beyond is how far the weights of a base in bfloat16 were rounded.
    rank = None if stored_weight is None else 2 * layer.r[adapter]
    return u[:, :rank], s[:rank], vt[:rank]


def check_change(model: Any, as_lora: Any) -> None:
    """Raises ValueError if an adapter and the LoRA with its whole change of weights give different answers."""
    vocabulary, source = model.get_input_embeddings().num_embeddings, torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (4, 16), generator=source).to(next(model.parameters()).device)
    config: Any = model.config
    if config.is_encoder_decoder:  # its classifier reads the state of the one end-of-sequence
        tokens[tokens == config.eos_token_id] = (config.eos_token_id + 1) % vocabulary
        tokens[:, -1] = config.eos_token_id
    text = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    with torch.no_grad():
        adapted, replaced = model(**text).logits, as_lora(**text).logits
        switch(model, on=False)
        base = model(**text).logits
        switch(model, on=True)
    error, effect = float((replaced - adapted).abs().max()), float((adapted - base).abs().max())
    if not error <= ACCURACY * effect + ROUNDING * float(adapted.abs().max()):
        raise ValueError(
            "the adapter is more than a change of weights of linear layers, so it cannot be cut: a LoRA of all this change "
            f"answers otherwise (outputs differ by {error:.2g}, where the adapter changes them by {effect:.2g})"
        )


def write_lora(folder: Folder, changes: Changes, to: Path, *, equal_ranks: bool = False) -> Folder:
    """Writes the adapter as a LoRA with whatever else the folder has: task head, tokenizer, template.

    With `equal_ranks` zeros fill all modules up to the largest rank, as servers want it that have one scale and one rank.
    """
    tensors = {
        name: weight
        for name, weight in load_file(folder.path / WEIGHTS_FILE).items()
        if name.startswith(PREFIX) and not any(name.startswith(f"{PREFIX}{module}.") for module in changes.spectra)
    }
    largest = max(changes.ranks.values())
    sizes = {name: largest if equal_ranks else rank for name, rank in changes.ranks.items() if rank}
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": folder.config.get("base_model_name_or_path") or folder.base,
        "revision": folder.config.get("revision"),
        **write_products(tensors, changes.spectra, sizes, torch.float32),
        "target_modules": sorted(sizes),
        "modules_to_save": folder.config.get("modules_to_save"),
        "task_type": folder.config.get("task_type"),
        "fan_in_fan_out": changes.transposed,
        "inference_mode": True,
    }
    return write_adapter(folder, tensors, config, to)


def write_adapter(folder: Folder, weights: dict[str, torch.Tensor], config: dict[str, Any], to: Path) -> Folder:
    """Writes an adapter with the tokenizer and the template of another one's folder."""

    def fill(aside: Path) -> None:
        copy_texts(folder.path, aside)
        save_file(weights, aside / WEIGHTS_FILE, metadata={"format": "pt"})
        (aside / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")

    write_folder(to, fill)
    return replace(folder, path=to, config=config, shapes={name: tuple(weight.shape) for name, weight in weights.items()})


def copy_texts(folder: Path, to: Path) -> None:
    """Copies what an adapter's folder holds next to its weights: tokenizer, template, configuration of the model."""
    for file in folder.iterdir():
        if file.is_file() and file.suffix in _COPIED and file.name not in _NOT_COPIED:
            shutil.copy(file, to)


def share_layers(shares: Mapping[str, float]) -> dict[str, float]:
    """Returns each layer's share of the change, from those of its modules."""
    layers: dict[str, float] = {}
    for name, share in shares.items():
        layer = next((f"layer {part}" for part in name.split(".") if part.isdigit()), name)
        layers[layer] = layers.get(layer, 0.0) + share
    return layers


def warnings_of(changes: Changes) -> list[str]:
    """Returns sentences on what is odd about where an adapter's change is."""
    shares, lines = changes.shares(), list[str]()
    dead = [name for name, share in shares.items() if share < 0.01 / len(shares)]
    if dead:
        lines.append(f"{len(dead)} of {len(shares)} modules hardly change ({', '.join(dead[:3])}{', ...' if dead[3:] else ''})")
    layers = share_layers(shares)
    layer, most = max(layers.items(), key=lambda item: item[1])
    if len(layers) > 2 and most > 0.5:
        lines.append(f"{layer} holds {100 * most:.0f} % of the change")
    full = [name for name, s in changes.values.items() if len(s) > 1 and float(s[-1]) > 0.5 * float(s.mean())]
    if len(full) > len(shares) / 2:
        lines.append(f"{len(full)} modules use their rank to its end: a larger one may be better, sweep it")
    return lines
