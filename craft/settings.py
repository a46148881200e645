"""The settings of a run without those of its method, with its task and data: plain checked data. No torch.

`RunSpec` (`craft.spec`) joins them with the method's own parameters.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from copy import deepcopy
from datetime import date as Day
from operator import not_
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

Protocol = Literal["honest", "customary"]

Precision = Literal["float32", "bf16-mixed", "bfloat16"]

HeadStart = Literal["random", "labels", "probe"]

LOCAL = "/"
"""Stands for any file or folder of this machine in what names a run."""

Way = Literal["replicate", "shard", "layers"]
"""How several GPUs train one trial (`craft.processes`)."""

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""What cuBLAS needs in the environment, before CUDA starts, to give equal bits to equal products."""


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
"""Word -> end of the path of a linear module, for models with a layout that `craft.models.projections.LAYOUTS` lacks."""


def _holds_bool(value: Any) -> bool:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, bool) or any(map(_holds_bool, values))


def _leaves(kind: Any) -> list[Any]:
    """Returns the types that a type is made of."""
    return [leaf for part in get_args(kind) for leaf in _leaves(part)] or [kind]


class Settings(BaseModel):
    """Base of everything a user writes: unknown keys are refused, values never change after they are checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses true and false where a type has numbers alone, since pydantic takes true for 1."""
        kinds = _leaves(cls.model_fields[str(info.field_name)].annotation) if _holds_bool(value) else []
        takes_it = (
            bool in kinds or Any in kinds or any(isinstance(leaf, type) and issubclass(leaf, BaseModel) for leaf in kinds)
        )
        if (float in kinds or int in kinds) and not takes_it:
            number = "number" if float in kinds else "whole number"
            raise PydanticCustomError("number_type", "Input should be a {number}, not true or false", {"number": number})
        return value


class TrainingSettings(Settings):
    """How a run trains. Three epochs, a warm-up of 0.06 and no weight decay are the CRAFT paper's, other defaults are not."""

    epochs: float = Field(3.0, gt=0, le=100_000, description="Passes over the training split.")
    max_steps: int | None = Field(None, gt=0, le=2**31, description="Optimizer steps, in place of `epochs`.")
    batch_size: int = Field(16, gt=0, description="Examples of a micro-batch.")
    gradient_accumulation: int = Field(1, gt=0, description="Micro-batches of a step.")
    eval_batch_size: int = Field(64, gt=0, description="Examples of an evaluation's batch.")
    learning_rate: float | None = Field(
        None, gt=0, description="Peak learning rate of the adapter; its [method's own](methods.md) if absent."
    )
    head_learning_rate: float | None = Field(
        1e-3, gt=0, description="Peak learning rate of the task head; `null`: the adapter's."
    )
    head_start: HeadStart = Field(
        "probe",
        description="Start of the task head: fitted on the frozen base (`probe`), `random`, or random with "
        "the labels' mean or shares as bias (`labels`).",
    )
    weight_decay: float = Field(
        0.0,
        ge=0,
        description="AdamW's weight decay. It is towards 0; where zeros would not be the base model, towards the start.",
    )
    warmup_ratio: float = Field(0.06, ge=0, lt=1, description="Share of the steps in which the rate rises.")
    schedule: Literal["linear", "cosine", "constant"] = Field("linear", description="The rate after the warm-up.")
    max_grad_norm: float = Field(1.0, ge=0, description="Largest norm of the gradients; 0: no limit.")
    max_length: int = Field(128, gt=0, description="Tokens of an input; longer inputs are cut.")
    precision: Precision = Field(
        "float32",
        description="Number formats ([methods.md](methods.md#number-formats)). Trained weights are float32 always.",
    )
    tf32: bool = Field(False, description="Let CUDA round float32 factors to 10 bits.")
    gradient_checkpointing: bool = Field(False, description="Compute activations twice, to save memory.")
    evaluate_every: Annotated[float, Field(gt=0)] | Literal["end"] = Field(
        1.0, description="Epochs between two evaluations; `end`: one, at the end."
    )
    select: Literal["best", "last"] = Field("best", description="The weights that are scored.")
    train_examples: int | None = Field(None, gt=0, description="Size of a seeded training sample.")
    eval_examples: int | None = Field(None, gt=0, description="Size of a seeded sample that is scored.")
    search_examples: int | None = Field(None, gt=0, description="Size of the search split; `eval_examples` if absent.")
    group_by_length: bool = Field(False, description="Batches of about equal lengths.")

    def without_head(self) -> TrainingSettings:
        """Returns the settings of a task that is answered in words: it has no head that could start anywhere."""
        return self.model_copy(update={"head_start": "random", "head_learning_rate": None})

    def in_smaller_batches(self, *, scoring: bool = False) -> TrainingSettings | None:
        """Returns the same training in less memory, or None; only evaluations become smaller where `scoring` ran out of it.

        The micro-batch becomes the largest divisor of the effective batch that is at most half of it. A loss is summed over the
        effective batch and divided once (`craft.trainer.loop`), so a run changes by rounding only.
        """
        evaluated = max(1, self.eval_batch_size // 2)
        if scoring:
            return self.model_copy(update={"eval_batch_size": evaluated}) if self.eval_batch_size > 1 else None
        if self.batch_size == 1:
            return None
        effective = self.batch_size * self.gradient_accumulation
        size = next(size for size in range(self.batch_size // 2, 0, -1) if effective % size == 0)
        batches = {"batch_size": size, "gradient_accumulation": effective // size, "eval_batch_size": evaluated}
        return self.model_copy(update=batches)


CommonsenseTest = Literal["boolq", "piqa", "siqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge", "openbookqa"]


Columns = Annotated[
    tuple[str, ...],
    Field(max_length=2),
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}]}
    ),
]
"""One column or two; a file may write one without a list."""


class HubSplit(Settings):
    """A split of a dataset on the Hugging Face hub, or in a folder that the datasets library reads."""

    path: str = Field(min_length=1, description="The hub's id, such as `org/name`, or a folder.")
    name: str | None = Field(None, exclude_if=not_, description="The dataset's configuration, if it has several.")
    split: str = Field("train", min_length=1, description="The split, or a part of it: `train[:2000]`.")
    revision: str | None = Field(None, exclude_if=not_, description="The revision on the hub.")

    def __str__(self) -> str:
        return " ".join(filter(None, (self.path, self.name, self.split, self.revision)))


SPLIT_TAG = "a split"
Source = Annotated[
    Annotated[str, Tag("str")] | Annotated[HubSplit, Tag(SPLIT_TAG)],
    Discriminator(lambda value: SPLIT_TAG if isinstance(value, dict | HubSplit) else "str"),
]
"""A file, or a split of a dataset."""


class CustomTask(Settings):
    """A task from the user's own files, with the columns to read."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": ["text", "label"]}, {"required": ["prompt", "response"]}, {"required": ["messages"]}]
        }
    )

    train: Source = Field(
        description="Training file. CSV, TSV, JSONL, JSON or parquet, looked up next to the sweep file first; or a split of a "
        "dataset, as in `{path: org/name, split: train}`."
    )
    validation: Source | None = Field(None, description="File that is scored; else a share of `train`.")
    reported: float | None = Field(
        None, gt=0, lt=1, exclude_if=not_, description="Scored share of `train`; else a tenth. Not with a `validation` file."
    )
    encoding: str | None = Field(None, exclude_if=not_, description="Encoding of the files, such as `cp1252`; else UTF-8.")
    skip_bad: bool = Field(False, exclude_if=not_, description="Leave out rows that cannot be used.")
    text: Columns = Field((), exclude_if=not_, description="One text column, or two for pairs.")
    label: str | None = Field(None, description="Column to predict.")
    kind: Literal["classification", "regression", "generation"] = Field("classification", description="Kind of the task.")
    labels: tuple[str, ...] | None = Field(None, description="Label names in order; else the file's.")
    metric: str | None = Field(
        None,
        description="The score ([own-data.md](own-data.md#your-file)). By default accuracy, pearson or likelihood.",
    )
    positive: str | int | None = Field(
        None,
        exclude_if=lambda label: label is None,
        description="The class of `f1`; else the rarer of two.",
    )
    prompt: Columns = Field(
        (),
        exclude_if=not_,
        description="Column of the prompt. Two are allowed, as in Alpaca's `[instruction, input]`.",
    )
    response: str | None = Field(None, exclude_if=not_, description="Column of the answer.")
    messages: str | None = Field(
        None,
        exclude_if=not_,
        description="Column of chats, in place of prompt and response.",
    )

    @property
    def parts(self) -> list[str | HubSplit]:
        return [part for part in (self.train, self.validation) if part is not None]

    @model_validator(mode="after")
    def _columns_of_its_kind(self) -> CustomTask:
        if self.reported and self.validation:
            raise ValueError(
                "reported is the share of train that is scored where there is no validation file; keep one of them"
            )
        said = [name for name in ("text", "label", "labels", "prompt", "response", "messages") if getattr(self, name)]
        if self.kind == "generation":
            fits, needed = said in (["prompt", "response"], ["messages"]), "prompt and response, or messages alone"
        else:
            fits = bool(self.text and self.label) and not {"prompt", "response", "messages"} & {*said}
            in_words = "prompt" in said or "messages" in said
            needed = "text and label" + (", and kind: generation for prompt, response or messages" if in_words else "")
        named = [*self.text, self.label, *self.prompt, self.response]
        if twice := {name for name in named if name is not None and named.count(name) > 1}:
            raise ValueError(f"each column once: {', '.join(map(repr, sorted(twice)))} is named twice")
        if not fits:
            raise ValueError(f"kind: {self.kind} needs the columns {needed}; given: {', '.join(said) or 'none'}")
        return self


class GenerationSettings(Settings):
    """Protocol of tasks that are answered in words. Scores under different settings are not comparable."""

    prompt: Literal["alpaca", "llm_adapters", "none"] = Field(
        "alpaca",
        description="Form of a question without a chat template.",
    )
    loss: Literal["response", "text"] = Field(
        "response",
        description="Tokens of the loss: the response, or the whole text.",
    )
    score: Literal["generate", "cloze"] = Field(
        "generate",
        description="Read the written answer, or take the likeliest option (`cloze`).",
    )
    tests: tuple[CommonsenseTest, ...] = Field(get_args(CommonsenseTest), min_length=1, description="Tests that are scored.")
    date: Day = Field(
        Day(2024, 7, 26),
        description="Day that a chat template writes.",
    )
    beams: int = Field(4, gt=0, description="Beams; 1 is greedy.")
    max_new_tokens: int = Field(32, gt=0, description="Most tokens of an answer.")

    @field_validator("tests")
    @classmethod
    def _each_test_once(cls, tests: tuple[CommonsenseTest, ...]) -> tuple[CommonsenseTest, ...]:
        return tuple(dict.fromkeys(tests))

    @model_validator(mode="after")
    def _cloze_has_its_own_form(self) -> GenerationSettings:
        if self.score == "cloze" and self.prompt != "alpaca":
            raise ValueError("score: cloze has a form of its own (docs/methods.md); leave prompt out")
        return self


class DataSettings(Settings):
    """Where tasks find their data."""

    root: str | None = Field(None, description="Folder with `glue/` and `commonsense/`; without it GLUE is from the hub.")
    custom: dict[str, CustomTask] = Field({}, description="Own tasks ([own-data.md](own-data.md)).")
    generation: GenerationSettings = Field(default_factory=GenerationSettings)
    search_fraction: float = Field(0.1, gt=0, lt=0.5, description="Share of the training rows for the search score.")
    search_groups: bool = Field(
        True,
        description="Equal texts, and SST-2's phrases of a sentence, stay in one split.",
    )

    def own(self, task: str) -> CustomTask | None:
        """Returns the settings of the task `custom/NAME`; None if it is no own task."""
        return self.custom.get(task.removeprefix("custom/")) if task.startswith("custom/") else None


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

    text: str | None = Field(None, min_length=1, description="UTF-8 file; else the shipped text.")

    @property
    def name(self) -> str:
        """The name of the text in records: its file as the settings give it, or `shipped`."""
        return self.text or "shipped"


class MeasureSettings(Settings):
    """What is measured of each trained model besides its scores."""

    forgetting: ForgettingSettings | None = Field(
        None,
        description="Loss on a text after training minus before ([methods.md](methods.md#forgetting)).",
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
