"""Settings of tasks and their data: own files, tasks that are answered in words, places of published data. No torch here."""

from __future__ import annotations

from datetime import date as Day
from operator import not_
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, field_validator, model_validator

from craft.settings import Settings

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
    name: str | None = Field(None, exclude_if=not_, description="The configuration, if it has several.")
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
        description="Training file: CSV, TSV, JSONL, JSON or parquet, looked up next to the sweep file first. Or a split of a "
        "dataset, as in `{path: org/name, split: train}`."
    )
    validation: Source | None = Field(
        None, description="File or split that is scored; if absent, a seeded share of `train` is held out for this."
    )
    reported: float | None = Field(
        None, gt=0, lt=1, exclude_if=not_, description="That share; a tenth if absent. Not with a `validation` file."
    )
    encoding: str | None = Field(
        None, exclude_if=not_, description="Encoding of the files, such as `cp1252`, if they are no UTF-8."
    )
    skip_bad: bool = Field(False, exclude_if=not_, description="Leave out rows that cannot be used.")
    text: Columns = Field((), exclude_if=not_, description="One text column, or two for pairs.")
    label: str | None = Field(None, description="Column with the label or the number to predict.")
    kind: Literal["classification", "regression", "generation"] = Field("classification", description="What is predicted.")
    labels: tuple[str, ...] | None = Field(None, description="Label names in order, if not the file's.")
    metric: str | None = Field(
        None,
        description="Metric that is the score: by default accuracy, pearson or likelihood.",
    )
    positive: str | int | None = Field(
        None,
        exclude_if=lambda label: label is None,
        description="Of two classes, that of `f1`; the rarer one if absent.",
    )
    prompt: Columns = Field(
        (),
        exclude_if=not_,
        description="Under `kind: generation`, the column of what is asked, or two: an instruction and its input, which may be "
        "empty (Alpaca's `[instruction, input]`).",
    )
    response: str | None = Field(None, exclude_if=not_, description="The column of the answer.")
    messages: str | None = Field(
        None,
        exclude_if=not_,
        description="The column of chats in place of those two.",
    )

    @property
    def parts(self) -> list[str | HubSplit]:
        """Its files and splits."""
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
        if not fits:
            raise ValueError(f"kind: {self.kind} needs the columns {needed}; given: {', '.join(said) or 'none'}")
        return self


class GenerationSettings(Settings):
    """Protocol of tasks that are answered in words. Scores under different settings are not comparable."""

    prompt: Literal["alpaca", "llm_adapters", "none"] = Field(
        "alpaca",
        description="Template of a question: Alpaca's, that of LLM-Adapters, or `none`, without the tokenizer's chat template.",
    )
    loss: Literal["response", "text"] = Field(
        "response",
        description="Tokens that the loss sees: the response, or the whole text.",
    )
    score: Literal["generate", "cloze"] = Field(
        "generate",
        description="Read the answer that the model writes, or take the option whose own text is the likeliest (`cloze`).",
    )
    tests: tuple[CommonsenseTest, ...] = Field(
        get_args(CommonsenseTest), min_length=1, description="Tests whose mean accuracy is the score."
    )
    date: Day = Field(
        Day(2024, 7, 26),
        description="The day that a chat template with a date writes.",
    )
    beams: int = Field(4, gt=0, description="Beams of the search; 1 is greedy.")
    max_new_tokens: int = Field(32, gt=0, description="Tokens of a written answer, at most.")

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

    root: str | None = Field(None, description="Folder that holds `glue/` and `commonsense/`; if absent, the hub.")
    custom: dict[str, CustomTask] = Field({}, description="Tasks from your own files: `custom/NAME` by NAME.")
    generation: GenerationSettings = Field(default_factory=GenerationSettings)
    search_fraction: float = Field(0.1, gt=0, lt=0.5, description="Share of the training split that is the search split.")
    search_groups: bool = Field(
        True,
        description="Keep rows together that belong together (equal texts, SST-2's phrases of a sentence); `false`: each row "
        "by itself.",
    )
