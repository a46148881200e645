"""Base models: where they are and what they are (`files`), how they load and which modules are the head (`loading`), where they
keep their projections (`projections`). No torch here."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from craft.tasks.task import Kind


@dataclass(frozen=True)
class Base:
    """What decides a base model's weights, number formats and task head.

    Attributes:
        name: local folder, FOLDER/FILE.gguf or hub id.
        kind: classification and regression get a sequence-classification head, generation the language model's own.
        pad_token_id: what the tokenizer pads with, for models that must know where a sequence ends.
        quantization: arguments of transformers' `BitsAndBytesConfig`: the base's linear layers are quantized as they are
            read; products are computed in the format of `precision`.
        projection_map: word -> end of a module's path, for a model family that is not known.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...] = ()
    revision: str | None = None
    precision: str = "float32"
    master_weights: bool = False
    pad_token_id: int | None = None
    quantization: Mapping[str, Any] | None = field(default=None, hash=False)
    projection_map: Mapping[str, str] = field(default_factory=dict, hash=False)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silences what transformers and PEFT print about healthy runs (load reports, bars, new heads) until the block ends."""
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    root_level = logging.getLogger("peft").level
    logging.getLogger("peft").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(transformers|peft|accelerate|torch)(\.|$)")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        logging.getLogger("peft").setLevel(root_level)
        if bars:
            transformers_logging.enable_progress_bar()
