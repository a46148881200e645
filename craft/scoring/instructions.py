"""Scores of own instructions: how likely the model finds held-out responses, and, if asked for, how its answers compare.

    likelihood      100 · 2^-bits     bits = - Σ log2 p(token | those before it) / number of the split's response tokens
    exact_match     share of answers that equal the response
    chrf            chrF of the answers (Popović 2015), by sacrebleu

`likelihood` is the geometric mean of a token's probability in percent, so it rises from 0 to 100 as bits fall. Answers are
written only where they decide the score. `predictions/reported.jsonl` has a line for each response.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from craft.scoring.answers import WordScorer
from craft.scoring.credits import CREDITS, SEARCH_CREDITS, credits_of
from craft.scoring.predictions import Prediction
from craft.scoring.scorer import Keep, Reported
from craft.tasks.forms import Form
from craft.tasks.metrics import METRICS
from craft.tasks.prompts import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from craft.spec import RunSpec
    from craft.tasks.splits import Splits
    from craft.tasks.task import Task


class InstructionScorer(WordScorer):
    """`craft.scoring.scorer.Scorer` for the user's own instructions."""

    def __init__(self, spec: RunSpec, task: Task, splits: Splits, tokenizer: PreTrainedTokenizerBase, *arguments: Any) -> None:
        self._chat = Form(tokenizer, spec.data.generation)
        self._metric = METRICS[task.primary]
        self._answers = "output" in self._metric.reads
        super().__init__(spec, task, splits, tokenizer, *arguments, form=self._chat)
        self.facts = {"prompt_form": self._chat.name}
        first = splits.train[:1]
        if self._chat.templated and self._chat.taught(first)[0] != [self._chat.prompt(first["text"][0], first["extras"][0])]:
            self.notes.append(
                "the chat template begins an answer in another way than it writes a reply: answers begin as replies do"
            )

    def search(self, model: nn.Module) -> dict[str, float]:
        predictions = self._predict(model, self._splits.search, "search")
        values, self.searched = self._metrics(predictions), self._credits(predictions, SEARCH_CREDITS)
        return {f"search_{name}": value for name, value in values.items()}

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        predictions = self._predict_reported(model, "reported", directory)
        outputs = {prediction.get("output") for prediction in predictions}
        collapsed = self._answers and len(outputs) == 1 < len(predictions)
        notes = [f"collapsed to one answer to every prompt: {str(outputs.pop())[:80]!r}"] if collapsed else []
        metrics = self._metrics(predictions)
        del metrics["loss"]
        return Reported(metrics, notes + self._cut_note(predictions), self._credits(predictions, CREDITS))

    def _credits(self, predictions: Sequence[Prediction], name: str) -> dict[str, str]:
        sides = [_column(predictions, column) for column in self._metric.reads] if self._metric.credits else []

        def score(rows: NDArray[np.bool_]) -> float:
            return 100 * self._metric.compute(*(side[rows] for side in sides))

        return credits_of(score, len(predictions), name) if sides else {}

    def _predict(self, model: nn.Module, split: Any, name: str) -> list[Prediction]:
        prompts, taught = self._chat.taught(split[:])
        special = not self._chat.templated
        texts = encode(self._tokenizer, prompts, taught, max_length=None, loss="response", special=special)
        fits = [self._fit(text) for text in texts]
        # Answers take the time, where there are some.
        values = self._log_likelihoods(model, fits, "loss" if self._answers else name)
        responses = split["response"][:]
        if not self._chat.templated:
            prompts = [self._chat.prompt(text) for text in split["text"][:]]
        elif self._answers or not all(responses):  # an answer, as what is taught, may hold thoughts and calls of tools
            parts = [text.tokens[text.start :] for text in texts]
            responses = [part.strip() for part in self._tokenizer.batch_decode(parts, skip_special_tokens=True)]
        predictions: list[Prediction] = [
            {"prompt": prompt, "response": response, "log_likelihood": value, "tokens": len(fit.tokens) - fit.start}
            | ({"cut": True} if fit is not text else {})
            for prompt, response, value, fit, text in zip(prompts, responses, values, fits, texts, strict=True)
        ]
        if self._answers:
            outputs, _ = self._write(model, prompts, name, special)
            for prediction, output in zip(predictions, outputs, strict=True):
                prediction["output"] = output.strip()
        return predictions

    def _metrics(self, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Computes the task's metric, and every other one that can be read without a package."""
        sums, tokens = (_column(predictions, name) for name in METRICS["likelihood"].reads)
        loss = -sums.sum() / tokens.sum()
        # A ratio's error, by how far each response's sum is from the mean's.
        squares, rows = float(np.square(sums + loss * tokens).sum()), len(predictions)
        values = {
            name: 100 * metric.compute(*(_column(predictions, column) for column in metric.reads))
            for name, metric in METRICS.items()
            if metric is self._metric
            or (name in self._task.metrics and not metric.package and (self._answers or "output" not in metric.reads))
        }
        values |= {
            "likelihood_error": values["likelihood"] * math.sqrt(squares * rows / max(1, rows - 1)) / tokens.sum(),
            "bits_per_token": loss / math.log(2),
            "loss": loss,
        }
        return {name: float(value) for name, value in values.items()} | {"score": values[self._task.primary]}


def _column(predictions: Sequence[Prediction], name: str) -> NDArray[Any]:
    cells = [prediction[name] for prediction in predictions]
    return np.array([cell.strip() if isinstance(cell, str) else float(cell) for cell in cells])
