"""Adapters on disk: a PEFT folder with the task head in it, and the record from which the scored model is made again.

adapter_config.json  adapter_model.safetensors     PEFT's; `trainable.safetensors` instead where the method is no PEFT model
config.json                                        the base's, with the head's labels and problem type; none where a model
                                                   answers in words: transformers reads a folder with it as a whole model
tokenizer.json ...                                 the base's: `AutoTokenizer.from_pretrained(folder)` works
basis.safetensors                                  of lora_xs: the signs of the singular vectors, which PEFT computes again
run.json                                           the run's spec, labels, metrics and counts: all that `load_adapter` needs
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedTokenizerBase

from craft.methods.method import BuildContext, refuse_elsewhere
from craft.models import quiet_libraries
from craft.models.adapters import CONFIG_FILE, attach_adapter, save_basis, take_basis
from craft.models.compute import checkpoint_activations, compute_device, multiply_as_base, narrow_frozen
from craft.models.files import is_gguf, model_digest
from craft.models.loading import TASK_TYPES, head_names, is_head, load_model, load_tokenizer
from craft.processes import current
from craft.results import MODEL_DIGEST, RUN_FILE
from craft.settings import WarmStart
from craft.spec import RunSpec
from craft.trainer.checkpoint import write_folder

TRAINABLE_FILE = "trainable.safetensors"


def read_record(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    return record


def write_record(folder: Path, record: dict[str, Any]) -> None:
    (folder / RUN_FILE).write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")


def save_adapter(model: nn.Module, folder: Path, record: dict[str, Any]) -> Path:
    """Writes the trained weights of `model`, and `record` as run.json, whole or not at all; only in the first process."""
    weights = {} if isinstance(model, PeftModel) else copy_trainable(model)

    def fill(aside: Path) -> None:
        if isinstance(model, PeftModel):
            with quiet_libraries():
                model.save_pretrained(str(aside), save_embedding_layers=False)
            (aside / "README.md").unlink(missing_ok=True)  # PEFT's model card, a form with nothing filled in
            save_basis(model, aside)
        else:
            save_file(weights, aside / TRAINABLE_FILE)
        config: Any = model.config
        if record["kind"] != "generation":
            config.save_pretrained(str(aside))
        load_tokenizer(config._name_or_path, revision=record["spec"].get("revision")).save_pretrained(str(aside))
        write_record(aside, record)

    return write_folder(folder, fill) if current().is_first else folder


def load_adapter(
    folder: str | Path, base: str | None = None, *, trains: bool = False
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """Loads the model that was scored, in evaluation mode on the CPU (a quantized one on the GPU), and its tokenizer.

    Raises ValueError if folder or weights are damaged, the base is not available or is another one, or the method cannot run
    on this machine. `base` is the base model's name or folder here, if it is not the name that the adapter was trained with.
    With `trains` the adapter is to train on, if it is PEFT's.
    """
    folder = Path(folder)
    if not (folder / RUN_FILE).is_file():
        raise ValueError(f"{folder} is not an adapter of this project: it has no {RUN_FILE}")
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, "pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{file} is damaged ({error}): take the adapter from the sweep's folder or from MLflow again"
            ) from error
    record = read_record(folder)
    spec = RunSpec.model_validate(record["spec"])
    name = base or spec.model
    refuse_other_model(name, record)
    row = spec.row
    if row.quantization is not None:
        refuse_elsewhere(row)
    tokenizer = load_tokenizer(name, revision=spec.revision)
    learnt, narrows = folder / TRAINABLE_FILE, row.master_weights and spec.training.precision == "bfloat16"
    device = compute_device() if row.quantization else torch.device("cpu")
    described = spec.base(record["kind"], record["labels"], tokenizer.pad_token_id, name)
    model: nn.Module = load_model(described, device=device, seed=spec.seed)
    with quiet_libraries():
        if (folder / CONFIG_FILE).is_file():
            if narrows:
                heads = head_names(model)
                for weight_name, weight in model.named_parameters():
                    weight.requires_grad_(is_head(weight_name, heads))
                narrow_frozen(model)
            if trains and spec.training.gradient_checkpointing:
                checkpoint_activations(model)
            model = attach_adapter(model, folder, name, trains=trains)
            if spec.training.precision == "bfloat16" and not row.master_weights:
                multiply_as_base(model)
        else:
            context = BuildContext(TASK_TYPES[record["kind"]], seed=spec.seed)
            model = row.build(model, spec.typed_parameters, context)
            if narrows:
                narrow_frozen(model)
            restore_trainable(model, load_file(learnt) if learnt.is_file() else {})
    return model.eval(), tokenizer


def refuse_other_model(name: str, record: dict[str, Any]) -> None:
    """Refuses a GGUF file, or the folder that the run in `record` names, if it is not what the run was trained on."""
    trained, trained_on = record.get("facts", {}).get(MODEL_DIGEST), record["spec"]["model"]
    if trained is None or not (is_gguf(name) or (name == trained_on and Path(name).is_dir())):
        return
    digest = model_digest(name)
    if digest is not None and digest != trained:
        raise ValueError(
            f"the adapter was trained on {trained_on} with SHA-256 {trained}, and {name} has {digest}: its outputs would be "
            "different. Give the model that it was trained on as the base"
        )


def start_from(model: nn.Module, start: WarmStart, spec: RunSpec) -> bool:
    """Puts the weights of another run's adapter into a model with the same method and parameters.

    Returns whether the head was taken, too, as from the same task.
    """
    folder = Path(start.adapter) if start.adapter else None
    if folder is None or not (folder / RUN_FILE).is_file():
        reason = f"{folder} is no adapter of this project (it has no {RUN_FILE})" if folder else "no folder is given for it"
        raise ValueError(f"this run starts from the adapter of run {start.run}, but {reason}")
    record = read_record(folder)
    origin, trained = RunSpec.model_validate(record["spec"]), record.get("facts", {}).get(MODEL_DIGEST)
    same_task = origin.task == spec.task
    here = model_digest(spec.model, spec.revision) if trained else None
    if here is not None and here != trained:
        raise ValueError(
            f"the adapter in {folder} was trained on another model ({origin.model}, SHA-256 {str(trained)[:12]}) than the run "
            f"that starts from it ({spec.model}, {here[:12]})"
        )
    for name in (*(() if here else ("model", "revision")), "method", "parameters"):
        original, setting = getattr(origin, name), getattr(spec, name)
        if original != setting:
            raise ValueError(
                f"the adapter in {folder} has another {name} ({original}) than the run that starts from it ({setting})"
            )
    heads = head_names(model)
    put: Any
    if isinstance(model, PeftModel):
        model_state, put = get_peft_model_state_dict(model, save_embedding_layers=False), set_peft_model_state_dict
        learnt = load_peft_weights(str(folder), device="cpu")
    else:
        model_state, put = copy_trainable(model), restore_trainable
        learnt = load_file(folder / TRAINABLE_FILE)
    saved = {name: weight for name, weight in learnt.items() if same_task or not is_head(name, heads)}
    unknown = [name for name in saved if name not in model_state]
    if unknown or not saved:
        odd = ", ".join(unknown[:3]) or "it is empty"
        raise ValueError(f"the adapter in {folder} does not fit the model that starts from it: {odd}")
    put(model, model_state | saved)
    take_basis(model, folder)
    return same_task


def copy_trainable(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies every parameter that trains to CPU memory, by name. Only the first process gets those that are in parts."""
    group, weights = current(), [pair for pair in model.named_parameters() if pair[1].requires_grad]
    copies = ((name, group.collect(weight)) for name, weight in weights)
    return {name: copy for name, copy in copies if copy is not None}


def restore_trainable(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Puts `state` back into the parameters that train. Raises ValueError if it belongs to another model."""
    group, weights = current(), {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    odd = weights.keys() ^ state.keys() or {name for name in weights if weights[name].shape != state[name].shape}
    if odd and group.is_first:
        raise ValueError(f"saved parameters do not fit the model: {', '.join(sorted(odd)[:3])} differ")
    for name, weight in weights.items():
        group.put(weight, state.get(name))
