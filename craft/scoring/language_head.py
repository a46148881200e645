"""The language model inside a classifier: its backbone as it trains, under the language head of the checkpoint it came from.

    classifier      tokens ── backbone ──┬── task head           what trains
                                         └── language head       what reads text; frozen, or the input embeddings if tied

A decoder that gets a task head loses its language head, which transformers does not load then. `LanguageHead` loads the
checkpoint's language model a second time, keeps what stands behind the backbone, and gives it the outputs of the classifier's
own backbone. The classifier runs as it always does, with whatever its method does before and around the layers.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel
from torch import nn

from craft.methods import find_method
from craft.models.loading import load_config, load_model
from craft.spec import RunSpec
from craft.tasks.task import Kind

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gpt2", "opt")
"""transformers' names of the families whose classifiers are read so; a test compares each with its language model."""


def refuse_without_language_head(spec: RunSpec, kind: Kind) -> None:
    """Checks, from the model's configuration alone, that a run that asks for `forgetting` has a language head.

    Raises:
        ValueError: the checkpoint is not that of a language model, or of a family that is not known here.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if spec.measure.forgetting is None or kind == "generation":
        return
    config = load_config(spec.model, "generation", (), revision=spec.revision)
    written = getattr(config, "architectures", None) or []
    is_language = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type) in written
    if config.model_type in FAMILIES and (is_language):
        return
    holds = ", ".join(written) or f"a model of type {config.model_type} without the name of its class"
    raise ValueError(
        f"measure.forgetting asks for a loss on text, and the checkpoint of {spec.model} holds no language head that can "
        f"stand beside a task head (it holds {holds}). Take a language model ({', '.join(FAMILIES)}), a task that is answered "
        "in words, or drop measure.forgetting"
    )


class LanguageHead:
    """The language head of a run's checkpoint, loaded once."""

    def __init__(self, spec: RunSpec, name: str | None = None) -> None:
        """
        Args:
            name: name or folder of the base model here, if it is not the run's.

        Raises:
            ValueError: the model cannot be had.
        """
        language: Any = load_model(
            name or spec.model,
            "generation",
            (),
            revision=spec.revision,
            precision=spec.training.precision,
            master_weights=find_method(spec.method).master_weights,
            seed=spec.seed,
        )
        self.output = language.get_output_embeddings()
        self.tied = self.output.weight is language.get_input_embeddings().weight
        self.replay = _Replay()
        setattr(language, language.base_model_prefix, self.replay)
        self.language = language

    def beside(self, classifier: nn.Module) -> nn.Module:
        """What reads text with the weights that `classifier`, with a method on it or without, has whenever it is asked."""
        return LanguageModel(classifier, self)


class LanguageModel(nn.Module):
    """Reads text as a language model, with a classifier's backbone."""

    def __init__(self, classifier: nn.Module, head: LanguageHead) -> None:
        super().__init__()
        base: Any = classifier.get_base_model() if isinstance(classifier, PeftModel) else classifier
        self.classifier, self.language = classifier, head.language.to(next(classifier.parameters()).device)
        self._head = head
        self._backbone = (getattr(base, base.base_model_prefix),)  # in a tuple: it is among the classifier's modules already
        self.train(classifier.training)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        """transformers' output with `logits` (b, tokens, vocabulary)."""
        found: list[Any] = []
        hook = self._backbone[0].register_forward_hook(lambda _module, _inputs, output: found.append(output))
        try:
            self.classifier(input_ids=input_ids, attention_mask=attention_mask)
        finally:
            hook.remove()
        if self._head.tied:  # they may train
            self._head.output.weight = self._backbone[0].get_input_embeddings().weight
        self._head.replay.output = found[-1]
        return self.language(input_ids=input_ids, attention_mask=attention_mask)


class _Replay(nn.Module):
    """Stands in the place of a language model's backbone and gives the output of another one."""

    output: Any = None

    @property
    def decoder(self) -> _Replay:
        """OPT's language model asks the decoder inside its backbone."""
        return self

    def forward(self, *_inputs: Any, **_options: Any) -> Any:
        return self.output
