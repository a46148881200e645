"""`Base`: the base model of a run, as the argument of whatever loads it, shapes it or counts it. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from craft.tasks.task import Kind


@dataclass(frozen=True)
class Base:
    """What decides a base model's weights, number formats and task head.

    Attributes:
        name: local folder, FOLDER/FILE.gguf or hub id.
        kind: classification and regression get a sequence-classification head, generation the language model's own.
        precision: the run's; the head is float32 always (`craft.models.compute`).
        master_weights: whether weights of the base will train.
        pad_token_id: what the tokenizer pads with, for models that must know where a sequence ends.
        quantization: arguments of transformers' `BitsAndBytesConfig`: the base's linear layers are quantized as they are
            read; products are computed in the format of `precision`.
        projection_map: word -> end of a module's path, for a model family that is not known.
    """

    name: str
    kind: Kind
    labels: Sequence[str] = ()
    revision: str | None = None
    precision: str = "float32"
    master_weights: bool = False
    pad_token_id: int | None = None
    quantization: Mapping[str, Any] | None = field(default=None, hash=False)
    projection_map: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))
