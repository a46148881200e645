"""Writes an adapter in another form, checked against its own outputs: as a LoRA with the same change of weights, or
merged into its base, a full model that plain transformers loads.

Merging adds the adapter's change to the base's weights. Sixteen-bit weights round away a fifth or more of a small change, so
the merged model is always written in float32.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from craft.results import RUN_FILE
from craft.settings import DataSettings
from craft.tasks import find_task

if TYPE_CHECKING:
    from torch import Tensor, nn

RECORD_FILE = "trained_as.json"
"""The run's record in the folder of a merged model."""
TOLERANCE = 1e-3
"""The largest allowed difference of outputs after merging or converting, as a share of the largest output."""


def read_run(folder: Path) -> dict[str, Any]:
    """Returns the record of the run that made an adapter, or the adapter of a merged model."""
    merged = folder / RECORD_FILE
    return dict(json.loads((merged if merged.is_file() else folder / RUN_FILE).read_text(encoding="utf-8")))


def write_merged(adapter: Path, folder: Path, base: str | None = None) -> str:
    """Writes the merged model, its tokenizer and the run's record (as trained_as.json) into `folder`.

    Raises:
        ValueError: the method cannot be merged, or the merged model answers differently after it is read back.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    from craft import load_adapter
    from craft.methods import shown_method
    from craft.models import quiet_libraries

    record = read_run(adapter)
    model, tokenizer = load_adapter(adapter, base)
    adapter_logits = exact_logits(model, tokenizer)
    with quiet_libraries():
        method = shown_method(record["spec"]["method"], record["spec"]["parameters"])
        merged = merged_model(model, method)
        try:
            merged.save_pretrained(str(folder))
        except RuntimeError as error:  # safetensors: two names for the memory of one weight
            raise ValueError(
                f"method {method} cannot be merged here: layers of its model share weights (layer_replication, tied weights), "
                "which a file of weights cannot say; take the adapter without --as merged"
            ) from error
        tokenizer.save_pretrained(str(folder))
        auto = AutoModelForCausalLM if record["kind"] == "generation" else AutoModelForSequenceClassification
        again = auto.from_pretrained(str(folder), use_safetensors=True, trust_remote_code=False).eval()
    difference = _check(adapter_logits, again, tokenizer, f"{method} is another model when it is merged", "merged")
    (folder / RECORD_FILE).write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
    trained = record["spec"]["training"]["precision"]
    rounded = f" It trained over a {trained} base, whose weights could not hold the change."
    note = "" if trained in ("float32", "bf16-mixed") else rounded
    return (
        "The adapter is merged into the weights, in float32: on two test sentences its outputs differ from the adapter's by at "
        f"most {difference:.0e} of the largest.{note}"
    )


def reads_pairs(run: Mapping[str, Any]) -> bool:
    """Returns whether the task of a run's record reads two texts. The record says it, so no file of the user is needed."""
    task = run["spec"]["task"]
    custom_task = run["spec"]["data"]["custom"].get(task.removeprefix("custom/")) if task.startswith("custom/") else None
    return len(find_task(task, DataSettings()).text if custom_task is None else custom_task.get("text", ())) == 2


def merged_model(model: nn.Module, method: str) -> Any:
    """Returns the base model with the adapter's change in its weights. Raises ValueError if the method cannot be merged."""
    from peft import PeftModel

    from craft.tuners.joint import unwrap_heads

    if not isinstance(model, PeftModel):
        return model  # it trained the model's own weights
    if not hasattr(model.base_model, "merge_and_unload"):
        raise ValueError(
            f"method {method} adds no change to weights, so there is nothing to merge; take the adapter without --as merged"
        )
    try:
        unwrap_heads(model)
        return model.merge_and_unload()
    except (NotImplementedError, AttributeError, ValueError) as error:
        raise ValueError(f"method {method} cannot be merged here: {error}; take the adapter without --as merged") from error


def exact_logits(model: nn.Module, tokenizer: Any) -> Tensor:
    """Computes a model's logits of two sentences, after making all of it float32."""
    import torch

    from craft.models.compute import compute_as_stored

    compute_as_stored(model.float())
    texts = ["A short text.", "A longer one, with numbers 1 2 3 and more words than the other, to fill a few more positions."]
    with torch.no_grad():
        logits: Tensor = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    return logits


def _check(reference: Tensor, model: nn.Module, tokenizer: Any, what: str, form: str) -> float:
    """Returns the largest difference of a model's outputs from a reference, as a share of the largest. Raises ValueError if it
    is more than rounding."""
    difference = float((reference - exact_logits(model, tokenizer)).abs().max() / reference.abs().max().clamp_min(1e-12))
    if not difference <= TOLERANCE:
        message = f"{what}: outputs differ by {difference:.1e} of the largest. Take the adapter without --as {form}"
        raise ValueError(message)
    return difference


def write_as_lora(adapter: Path, folder: Path, base: str | None = None) -> None:
    """Writes the adapter of a run as a LoRA, with the run's record, into `folder`: CRAFT's exactly, others by an SVD.

    Raises:
        ValueError: the method changes no weights of linear layers, or the LoRA answers differently after it is read back.
    """
    from peft import PeftModel

    from craft import load_adapter
    from craft.audit.changes import changes_of, copy_texts, write_lora
    from craft.audit.folder import read_folder
    from craft.trainer.checkpoint import MANIFEST_FILE
    from craft.tuners.craft.model import CraftModel

    record = read_run(adapter)
    method = record["spec"]["method"]
    reason = f"{method} is not the same as a LoRA"
    model, tokenizer = load_adapter(adapter, base)
    if not isinstance(model, PeftModel):
        raise ValueError(f"method {method} is no change of weights that a LoRA could be; take the adapter without --as lora")
    adapter_logits = exact_logits(model, tokenizer)
    if isinstance(model.base_model, CraftModel):
        model.base_model.to_lora(folder, equal_ranks=True)
        copy_texts(adapter, folder)
    else:
        try:
            stored = read_folder(adapter, base)
            labels, pad = record["labels"], tokenizer.pad_token_id
            changes = changes_of(model, stored.load_base(record["kind"], labels, pad) if stored.moves_base else None)
            if stored.moves_base and record["spec"]["training"]["precision"] == "bfloat16":
                reason += ", because its start was rounded over a bfloat16 base"
        except (AttributeError, NotImplementedError, ValueError) as error:
            raise ValueError(f"method {method} cannot be written as a LoRA: {error}; take it without --as lora") from error
        write_lora(stored, changes, folder, equal_ranks=True)
        (folder / MANIFEST_FILE).unlink()  # the folder gets more files
    shutil.copy(adapter / RUN_FILE, folder)
    again, _ = load_adapter(folder, base)
    _check(adapter_logits, again, tokenizer, reason, "lora")
