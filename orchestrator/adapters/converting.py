"""Writes an adapter as a LoRA with the same change of weights, checked against the adapter's own outputs."""

from __future__ import annotations

import shutil
from pathlib import Path


def write_as_lora(adapter: Path, folder: Path, base: str | None = None) -> None:
    """Writes the adapter of a run as a LoRA, with the run's record, into `folder`.

    Raises:
        ValueError: the method changes no weights of linear layers, or the LoRA answers differently after it is read back.
    """
    from peft import PeftModel

    from craft import load_adapter
    from craft.audit.changes import changes_of, write_lora
    from craft.audit.folder import read_folder
    from craft.results import RUN_FILE
    from craft.trainer.adapter_folder import read_record
    from craft.trainer.checkpoint import MANIFEST_FILE
    from orchestrator.adapters.merging import TOLERANCE, exact_logits, output_difference

    method = read_record(adapter)["spec"]["method"]
    model, tokenizer = load_adapter(adapter, base)
    if not isinstance(model, PeftModel):
        raise ValueError(f"method {method} is no change of weights that a LoRA could be; take the adapter without --as lora")
    before = exact_logits(model, tokenizer)
    try:
        changes = changes_of(model)
    except (AttributeError, NotImplementedError, ValueError) as error:
        raise ValueError(f"method {method} cannot be written as a LoRA: {error}; take it without --as lora") from error
    write_lora(read_folder(adapter, base), changes, changes.ranks, folder, equal_ranks=True)
    (folder / MANIFEST_FILE).unlink()  # the folder gets more files
    shutil.copy(adapter / RUN_FILE, folder)
    again, _ = load_adapter(folder, base)
    difference = output_difference(before, exact_logits(again, tokenizer))
    if not difference <= TOLERANCE:
        raise ValueError(
            f"{method} is not the same as a LoRA: outputs differ by {difference:.1e} of the largest. Take it without --as lora"
        )
