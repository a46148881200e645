"""Scores of own instructions: how likely the model finds held-out responses, and, if asked for, how its answers compare.

    likelihood      100 · 2^-bits     bits = - Σ log2 p(token | those before it) / number of the split's response tokens
    exact_match     share of answers that equal the response
    chrf            chrF of the answers (Popović 2015), by sacrebleu

`likelihood` is the geometric mean of a token's probability in percent, so it rises from 0 to 100 as bits fall. Answers are
written only where they decide the score. `predictions/reported.jsonl` has one line for each response.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from craft.scoring.answers import WordScorer
from craft.scoring.credits import credits_of
from craft.scoring.predictions import Prediction
from craft.scoring.scorer import Keep, Reported
from craft.tasks.forms import Form
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
        super().__init__(spec, task, splits, tokenizer, *arguments, form=self._chat)
        self.facts = {"prompt_form": self._chat.name}
        first = splits.train[:1]
        if self._chat.templated and self._chat.taught(first)[0] != [self._chat.prompt(first["text"][0], first["extras"][0])]:
            self.notes.append(
                "the chat template begins an answer in another way than it writes a reply: answers begin as replies do"
            )

    def search(self, model: nn.Module) -> dict[str, float]:
        values = self._metrics(self._predict(model, self._splits.search, "search"))
        return {f"search_{name}": value for name, value in values.items()}

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        found = self._predict_reported(model, "reported", directory)
        outputs = {one["output"] for one in found if "output" in one}
        notes = [f"collapsed to one answer to every prompt: {outputs.pop()[:80]!r}"] if len(outputs) == 1 < len(found) else []
        metrics = self._metrics(found)
        values = {name: value for name, value in metrics.items() if name != "loss"}
        return Reported(values, notes + self._cut_note(found), self._credits(found))

    def _credits(self, found: Sequence[Prediction]) -> dict[str, str]:
        """The fact of the credits; a text's chrF is no sum over rows, so it has none."""
        if self._task.primary == "chrf":
            return {}
        if self._task.primary == "likelihood":
            sums, tokens = (np.array([one[name] for one in found], dtype=float) for name in ("log_likelihood", "tokens"))
            return credits_of(lambda rows: 100 * math.exp(sums[rows].sum() / tokens[rows].sum()), len(found))
        right = np.array([one["output"] == one["response"].strip() for one in found])
        return credits_of(lambda rows: 100 * float(right[rows].mean()), len(found))

    def _predict(self, model: nn.Module, split: Any, what: str) -> list[Prediction]:
        prompts, taught = self._chat.taught(split[:])
        special, answers = not self._chat.templated, self._task.primary != "likelihood"
        texts = encode(self._tokenizer, prompts, taught, max_length=None, loss="response", special=special)
        fits = [self._fitted(text) for text in texts]
        values = self._log_likelihoods(model, fits, "loss" if answers else what)  # answers take the time, where there are some
        asked, responses = prompts, split["response"][:]
        if not self._chat.templated:
            asked = [self._chat.prompt(text) for text in split["text"][:]]
        elif answers or not all(responses):  # an answer, as what is taught, may hold thoughts and calls of tools
            parts = [text.tokens[text.start :] for text in texts]
            responses = [part.strip() for part in self._tokenizer.batch_decode(parts, skip_special_tokens=True)]
        found: list[Prediction] = [
            {"prompt": prompt, "response": response, "log_likelihood": value, "tokens": len(fit.tokens) - fit.start}
            | ({"cut": True} if fit is not text else {})
            for prompt, response, value, fit, text in zip(asked, responses, values, fits, texts, strict=True)
        ]
        if answers:
            written, _ = self._write(model, asked, what, special)
            for one, output in zip(found, written, strict=True):
                one["output"] = output.strip()
        return found

    def _metrics(self, found: Sequence[Prediction]) -> dict[str, float]:
        sums, tokens = (np.array([one[name] for one in found], dtype=float) for name in ("log_likelihood", "tokens"))
        loss = -sums.sum() / tokens.sum()
        # A ratio's error, by how far each response's sum lies from the mean's.
        spread = math.sqrt(float(np.square(sums + loss * tokens).sum()) * len(found) / max(1, len(found) - 1)) / tokens.sum()
        likelihood = 100 * math.exp(-loss)
        values = {
            "likelihood": likelihood,
            "likelihood_error": likelihood * spread,
            "bits_per_token": loss / math.log(2),
            "loss": loss,
        }
        metric = self._task.primary
        if metric != "likelihood":
            pairs = [(one["output"], one["response"].strip()) for one in found]
            values["exact_match"] = 100 * sum(output == response for output, response in pairs) / len(pairs)
        if metric == "chrf":
            from sacrebleu.metrics import CHRF

            values["chrf"] = float(CHRF().corpus_score([one for one, _ in pairs], [[other for _, other in pairs]]).score)
        values = {name: float(value) for name, value in values.items()}
        return values | {"score": values[metric]}
