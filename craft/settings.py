"""What a run is told, apart from its method: plain checked settings. No torch.

`RunSpec` (`craft.spec`) puts them together with a method's own parameters.
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
    """How a run trains. The defaults are the CRAFT paper's where it states them.

    `learning_rate` is the adapter's; `head_learning_rate` the task head's (the same where it is not given).
    `select` names the weights that are scored at the end: those of the evaluation with the best search score, or the last.
    `train_examples` and `eval_examples` cut the splits to a seeded sample, for small machines and for tests; `search_examples`
    cuts the search split alone, where scoring all of it at every evaluation would cost too much.
    `group_by_length` makes batches of examples of about equal length: less padding, another order.
    """

    epochs: float = Field(3.0, gt=0)
    max_steps: int | None = Field(None, gt=0, description="stop after this many optimizer steps, whatever the epochs")
    batch_size: int = Field(16, gt=0, description="examples in one micro-batch")
    gradient_accumulation: int = Field(1, gt=0, description="micro-batches in one optimizer step")
    eval_batch_size: int = Field(64, gt=0)
    learning_rate: float = Field(1e-3, gt=0)
    head_learning_rate: float | None = Field(None, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    warmup_ratio: float = Field(0.06, ge=0, lt=1)
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    max_grad_norm: float = Field(1.0, ge=0, description="0 leaves gradients as they are")
    max_length: int = Field(128, gt=0, description="tokens; longer inputs are cut")
    dtype: DType = "float32"
    gradient_checkpointing: bool = False
    evaluate_every: float = Field(1.0, gt=0, description="epochs between two evaluations on the search split")
    select: Literal["best", "last"] = "best"
    train_examples: int | None = Field(None, gt=0)
    eval_examples: int | None = Field(None, gt=0)
    search_examples: int | None = Field(None, gt=0, description="eval_examples if absent")
    group_by_length: bool = False

    def identity(self) -> dict[str, Any]:
        """What names are made of. A setting younger than the first records counts only where it is used, so that those keep
        their names."""
        content = self.model_dump(mode="json")
        if not self.group_by_length:
            del content["group_by_length"]
        if self.search_examples is None:
            del content["search_examples"]
        return content


class WarmStart(Settings):
    """The finished run whose adapter a run starts from, the task head excepted: same model, method and parameters.

    `run` is that run's key, and part of this one's; `adapter` is where the adapter lies here, and is not.
    """

    run: str = Field(pattern=r"^[0-9a-f]{16}$")
    adapter: str | None = None


class CustomTask(Settings):
    """A task made of the user's own files (CSV, JSONL or parquet), with the columns to read.

    Without `validation` a seeded tenth of `train` is set apart and is what gets scored.
    """

    train: str
    validation: str | None = None
    text: tuple[str, ...] = Field(min_length=1, max_length=2, description="one text column, or two for pairs")
    label: str
    kind: Literal["classification", "regression"] = "classification"
    labels: tuple[str, ...] | None = Field(None, description="label names in order; read from the training file if absent")
    metric: str | None = Field(None, description="the metric that is the score; accuracy or pearson if absent")

    @field_validator("text", mode="before")
    @classmethod
    def _one_column_is_a_list_of_one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class GenerationSettings(Settings):
    """The protocol of a task that is answered in words: scores under different settings are not comparable.

    `prompt` is a row of `craft.tasks.prompts.PROMPTS`. `loss` is on the response's tokens (the CRAFT paper's) or on the whole
    text (the published LLM-Adapters trainer's). `score` is read from what the model writes, or, faster, from which of the
    allowed answers it finds likeliest. `tests` are what the score is the mean of.
    """

    prompt: Literal["alpaca", "llm_adapters"] = "alpaca"
    loss: Literal["response", "text"] = "response"
    score: Literal["generate", "likelihood"] = "generate"
    tests: tuple[CommonsenseTest, ...] = Field(get_args(CommonsenseTest), min_length=1)
    beams: int = Field(4, gt=0, description="beams of the search; 1 is greedy")
    max_new_tokens: int = Field(32, gt=0)

    @field_validator("tests")
    @classmethod
    def _each_test_once(cls, tests: tuple[CommonsenseTest, ...]) -> tuple[CommonsenseTest, ...]:
        return tuple(dict.fromkeys(tests))


class DataSettings(Settings):
    """Where tasks find their data: `root` is a folder that holds `glue/` and `commonsense/`; without it the hub is asked."""

    root: str | None = None
    custom: dict[str, CustomTask] = Field(default_factory=dict)
    generation: GenerationSettings = Field(default_factory=GenerationSettings)
    search_fraction: float = Field(0.1, gt=0, lt=0.5, description="share of train that the honest protocol sets apart")


def content_hash(content: Any, digits: int) -> str:
    """SHA-256 of the canonical JSON of `content`, cut to `digits` hexadecimal digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
