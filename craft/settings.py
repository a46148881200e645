"""The settings of a run apart from its method: plain checked data. No torch.

`RunSpec` (`craft.spec`) joins them with the method's own parameters.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

Protocol = Literal["honest", "customary"]

DType = Literal["float32", "bfloat16", "float16"]

CommonsenseTest = Literal["boolq", "piqa", "siqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge", "openbookqa"]


class Settings(BaseModel):
    """Base of everything a user writes: unknown keys are refused, values never change after they are checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)


class TrainingSettings(Settings):
    """How a run trains. The defaults are the CRAFT paper's where it states them."""

    epochs: float = Field(3.0, gt=0, description="Passes over the training split.")
    max_steps: int | None = Field(None, gt=0, description="Stop after this many optimizer steps, whatever `epochs` says.")
    batch_size: int = Field(16, gt=0, description="Examples in one micro-batch.")
    gradient_accumulation: int = Field(1, gt=0, description="Micro-batches in one optimizer step.")
    eval_batch_size: int = Field(64, gt=0, description="Examples in one batch of an evaluation.")
    learning_rate: float = Field(1e-3, gt=0, description="Peak learning rate of the adapter.")
    head_learning_rate: float | None = Field(
        None, gt=0, description="Peak learning rate of the task head; `learning_rate` if absent."
    )
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay.")
    warmup_ratio: float = Field(0.06, ge=0, lt=1, description="Share of the steps in which the learning rate rises from 0.")
    schedule: Literal["linear", "cosine", "constant"] = Field(
        "linear", description="How the learning rate goes on after the warm-up."
    )
    max_grad_norm: float = Field(1.0, ge=0, description="Gradients are cut to this norm; 0 leaves them as they are.")
    max_length: int = Field(128, gt=0, description="Tokens of an input; longer inputs are cut.")
    dtype: DType = Field("float32", description="Number format of the base model's weights.")
    gradient_checkpointing: bool = Field(False, description="Compute activations a second time instead of keeping them.")
    evaluate_every: float = Field(1.0, gt=0, description="Epochs between two evaluations on the search split.")
    select: Literal["best", "last"] = Field(
        "best", description="Score the weights of the evaluation with the best search score, or the last weights."
    )
    train_examples: int | None = Field(None, gt=0, description="Train on a seeded sample of this size.")
    eval_examples: int | None = Field(None, gt=0, description="Cut the splits that are scored to a seeded sample of this size.")
    search_examples: int | None = Field(
        None, gt=0, description="Cut the search split alone to this size; `eval_examples` if absent."
    )
    group_by_length: bool = Field(
        False, description="Make batches of examples of about equal length: less padding, another order."
    )

    def identity(self) -> dict[str, Any]:
        """The settings that a run's key is made of.

        A setting that was added later counts only where it is used, so that earlier runs keep their keys.
        """
        content = self.model_dump(mode="json")
        if not self.group_by_length:
            del content["group_by_length"]
        if self.search_examples is None:
            del content["search_examples"]
        return content


class WarmStart(Settings):
    """The finished run whose adapter a run starts from, the task head excepted: same model, method and parameters.

    `run` is the key of that run and is part of this run's key. `adapter` is where the adapter lies on this machine; it is not
    part of the key.
    """

    run: str = Field(pattern=r"^[0-9a-f]{16}$")
    adapter: str | None = None


class CustomTask(Settings):
    """A task from the user's own files, with the columns to read."""

    train: str = Field(description="Training file: CSV, JSONL or parquet.")
    validation: str | None = Field(
        None, description="File that is scored; if absent, a seeded tenth of `train` is set apart for this."
    )
    text: tuple[str, ...] = Field(
        min_length=1,
        max_length=2,
        description="One text column, or two for pairs.",
        json_schema_extra={
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}]
        },
    )
    label: str = Field(description="Column with the label or the number to predict.")
    kind: Literal["classification", "regression"] = Field(
        "classification", description="Whether to predict a class or a number."
    )
    labels: tuple[str, ...] | None = Field(None, description="Label names in order; read from the training file if absent.")
    metric: str | None = Field(
        None, description="Metric that is the score; accuracy for classes and pearson for numbers if absent."
    )

    @field_validator("text", mode="before")
    @classmethod
    def _one_column_is_a_list_of_one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class GenerationSettings(Settings):
    """Protocol of tasks that are answered in words. Scores under different settings are not comparable."""

    prompt: Literal["alpaca", "llm_adapters"] = Field(
        "alpaca", description="Template of a question: Alpaca's, or that of the published LLM-Adapters code."
    )
    loss: Literal["response", "text"] = Field(
        "response",
        description="Tokens that the loss sees: the response (the CRAFT paper), or the whole text (the LLM-Adapters trainer).",
    )
    score: Literal["generate", "likelihood"] = Field(
        "generate",
        description="Read the answer from what the model writes, or take the likeliest allowed answer, which is faster.",
    )
    tests: tuple[CommonsenseTest, ...] = Field(
        get_args(CommonsenseTest), min_length=1, description="Tests whose mean accuracy is the score."
    )
    beams: int = Field(4, gt=0, description="Beams of the search; 1 is greedy.")
    max_new_tokens: int = Field(32, gt=0, description="Tokens of a written answer, at most.")

    @field_validator("tests")
    @classmethod
    def _each_test_once(cls, tests: tuple[CommonsenseTest, ...]) -> tuple[CommonsenseTest, ...]:
        return tuple(dict.fromkeys(tests))


class DataSettings(Settings):
    """Where tasks find their data."""

    root: str | None = Field(
        None, description="Folder that holds `glue/` and `commonsense/`; the Hugging Face hub is asked if absent."
    )
    custom: dict[str, CustomTask] = Field({}, description="Tasks from your own files: `custom/NAME` by NAME.")
    generation: GenerationSettings = Field(default_factory=GenerationSettings)
    search_fraction: float = Field(
        0.1, gt=0, lt=0.5, description="Share of the training split that the honest protocol sets apart as the search split."
    )


def content_hash(content: Any, digits: int) -> str:
    """SHA-256 of the canonical JSON of `content`, cut to `digits` hexadecimal digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
