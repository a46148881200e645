"""The settings of a run without those of its method: plain checked data. No torch.

`RunSpec` (`craft.spec`) joins them with the method's own parameters.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

Protocol = Literal["honest", "customary"]

Precision = Literal["float32", "bf16-mixed", "bfloat16"]

HeadStart = Literal["random", "labels", "probe"]

LOCAL = "/"
"""Stands for any file or folder of this machine in what names a run."""

Way = Literal["replicate", "shard", "layers"]
"""How several GPUs train one trial (`craft.processes`)."""


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) != len(names):
        raise ValueError(f"each projection once; got {list(names)}")
    return names


Projections = Annotated[tuple[str, ...], AfterValidator(_each_once)]


def _patterns(mapping: dict[str, str]) -> dict[str, str]:
    for word, pattern in mapping.items():
        try:
            re.compile(re.sub(r"\[\d+/\d+\]$", "", pattern))
        except re.error as error:
            raise ValueError(f"{word}: {pattern!r} is no regular expression ({error})") from None
    return mapping


ProjectionMap = Annotated[dict[str, str], AfterValidator(_patterns)]
"""Word -> end of the path of a linear module, for models with a layout that `craft.models.layouts` lacks."""


def number_instead(value: Any, kind: Any) -> str | None:
    """Says what a value must be that is true or false where its type has numbers alone, since pydantic takes true for 1."""
    kinds = _leaves(kind) if _holds_bool(value) else []
    if bool in kinds or Any in kinds or any(isinstance(leaf, type) and issubclass(leaf, BaseModel) for leaf in kinds):
        return None
    return "a number, not true or false" if float in kinds else "a whole number, not true or false" if int in kinds else None


def _holds_bool(value: Any) -> bool:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, bool) or any(map(_holds_bool, values))


def _leaves(kind: Any) -> list[Any]:
    """Returns the types that a type is made of."""
    return [leaf for part in get_args(kind) for leaf in _leaves(part)] or [kind]


class Settings(BaseModel):
    """Base of everything a user writes: unknown keys are refused, values never change after they are checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        if wanted := number_instead(value, cls.model_fields[str(info.field_name)].annotation):
            raise PydanticCustomError("number_type", "Input should be {wanted}", {"wanted": wanted})
        return value


class TrainingSettings(Settings):
    """How a run trains. Three epochs, a warm-up of 0.06 and no weight decay are the CRAFT paper's, other defaults are not."""

    epochs: float = Field(3.0, gt=0, le=100_000, description="Passes over the training split.")
    max_steps: int | None = Field(None, gt=0, le=2**31, description="Optimizer steps of a run, in place of `epochs`.")
    batch_size: int = Field(16, gt=0, description="Examples in one micro-batch.")
    gradient_accumulation: int = Field(1, gt=0, description="Micro-batches in one optimizer step.")
    eval_batch_size: int = Field(64, gt=0, description="Examples in one batch of an evaluation.")
    learning_rate: float = Field(1e-3, gt=0, description="Peak learning rate of the adapter.")
    head_learning_rate: float | None = Field(
        1e-3, gt=0, description="Peak learning rate of the task head; `null`: the adapter's."
    )
    head_start: HeadStart = Field(
        "probe",
        description="Start of the task head: a linear model fitted on the frozen base (`probe`), random weights, or these "
        "with the labels' mean or shares as bias (`labels`).",
    )
    weight_decay: float = Field(
        0.0,
        ge=0,
        description="AdamW's weight decay, towards 0 or towards the start where zeros would not be the base model.",
    )
    warmup_ratio: float = Field(0.06, ge=0, lt=1, description="Share of the steps in which the learning rate rises.")
    schedule: Literal["linear", "cosine", "constant"] = Field(
        "linear", description="How the learning rate continues after the warm-up."
    )
    max_grad_norm: float = Field(1.0, ge=0, description="Gradients are cut to this norm; 0 leaves them as they are.")
    max_length: int = Field(128, gt=0, description="Tokens of an input; longer inputs are cut.")
    precision: Precision = Field(
        "float32",
        description="Number formats: all `float32`; products in bfloat16 (`bf16-mixed`); frozen weights and products in "
        "`bfloat16`. Trained weights are float32 always.",
    )
    tf32: bool = Field(False, description="Let a CUDA GPU round the factors of float32 products to 10 bits.")
    gradient_checkpointing: bool = Field(False, description="Compute activations a second time instead of keeping them.")
    evaluate_every: Annotated[float, Field(gt=0)] | Literal["end"] = Field(
        1.0, description="Epochs between two evaluations; `end`: one, at the end."
    )
    select: Literal["best", "last"] = Field("best", description="Score the weights of the best evaluation, or the last ones.")
    train_examples: int | None = Field(None, gt=0, description="Train on a seeded sample of this size.")
    eval_examples: int | None = Field(None, gt=0, description="Score a seeded sample of this size.")
    search_examples: int | None = Field(None, gt=0, description="Size of the search split; `eval_examples` if absent.")
    group_by_length: bool = Field(False, description="Make batches of examples of about equal length.")

    def without_head(self) -> TrainingSettings:
        """Returns the settings of a task that is answered in words: it has no head that could start anywhere."""
        return self.model_copy(update={"head_start": "random", "head_learning_rate": None})


class WarmStart(Settings):
    """The finished run whose adapter a run starts from, the task head excepted: same model, method and parameters.

    `run` is the key of that run and is part of this run's key. `adapter` is where the adapter lies on this machine; it is not
    part of the key.
    """

    run: str = Field(pattern=r"^[0-9a-f]{16}$")
    adapter: str | None = None


class CutFrom(Settings):
    """The finished run whose adapter a smaller one is cut from, and what it is cut to.

    `to` is its size: a rank (`8`) or a number of parameters (`parameters:20000`); see `craft.trainer.cuts`. `recovery` is how
    much longer the smaller one was trained alone, as a share of the run's steps.
    """

    run: str = Field(pattern=r"^[0-9a-f]{16}$")
    to: str
    recovery: float = Field(0.0, exclude_if=lambda share: not share)


class ForgettingSettings(Settings):
    """`forgetting`: the mean loss of a language model on the tokens of a text, after training minus before. `true` takes the
    text that ships with the package."""

    text: str | None = Field(None, min_length=1, description="Text file in UTF-8; the shipped text if absent.")

    @property
    def name(self) -> str:
        """The name of the text in records: its file as the settings give it, or `shipped`."""
        return self.text or "shipped"


class MeasureSettings(Settings):
    """What is measured of each trained model besides its scores."""

    forgetting: ForgettingSettings | None = Field(
        None,
        description="`forgetting`, for language models: the mean loss on a text, after training minus before.",
    )

    @field_validator("forgetting", mode="before")
    @classmethod
    def _true_is_the_shipped_text(cls, value: Any) -> Any:
        return ForgettingSettings() if value is True else None if value is False else value


def paths_to_read(document: Mapping[str, Any]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Returns the key of each path to read in the plain data of a sweep or a run, with the section that holds it."""
    data, forgetting = _section(document, "data"), _section(_section(document, "measure"), "forgetting")
    custom: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (("data", "custom", name, key), task)
        for name, task in _section(data, "custom").items()
        for key in ("train", "validation")
        if isinstance(task, dict)
    ]
    custom += [((*path, "path"), task[path[-1]]) for path, task in custom if isinstance(task.get(path[-1]), dict)]
    keys = [(("model",), document), (("data", "root"), data), (("measure", "forgetting", "text"), forgetting), *custom]
    return [(key, section) for key, section in keys if isinstance(section, dict) and isinstance(section.get(key[-1]), str)]


def without_places(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the plain data of a sweep or a run with `LOCAL` for each absolute path to read: files may move, and records
    have the digests of what they hold."""
    copy = deepcopy(dict(document))
    for key, section in paths_to_read(copy):
        if Path(section[key[-1]]).is_absolute():
            section[key[-1]] = LOCAL
    return copy


def _section(document: Any, name: str) -> dict[str, Any]:
    section = document.get(name) if isinstance(document, dict) else None
    return section if isinstance(section, dict) else {}


def content_hash(value: Any, digits: int) -> str:
    """Computes the SHA-256 of the canonical JSON of `value`, cut to `digits` hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
