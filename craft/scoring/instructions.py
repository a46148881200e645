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
from torch.utils.data import Dataset

from craft.results import PREDICTIONS_FOLDER
from craft.scoring.answers import Prediction, fit_text, read_predictions, write_predictions
from craft.scoring.generation import encode_prompts, fitted, generate, log_likelihoods, positions
from craft.scoring.scorer import Keep, Reported
from craft.scoring.texts import Tick, encode_texts
from craft.tasks.instructions import Form
from craft.tasks.prompts import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from craft.spec import RunSpec
    from craft.tasks.splits import Splits
    from craft.tasks.task import Task

_REPORTED = "reported"


class InstructionScorer:
    """`craft.scoring.scorer.Scorer` for the user's own instructions."""

    def __init__(
        self,
        spec: RunSpec,
        task: Task,
        splits: Splits,
        tokenizer: PreTrainedTokenizerBase,
        config: Any,
        length: int,
        key: tuple[object, ...],
        tick: Tick,
    ) -> None:
        """
        Args:
            config: the model's configuration.
            length: tokens a training text is cut to.
            key: everything beside the data's fingerprint that decides the tokens of the splits.
            tick: called after every batch.

        Raises:
            ValueError: the tokenizer cannot write the chats.
        """
        self._metric, self._tokenizer, self._tick = task.primary, tokenizer, tick
        self._settings, self._form = spec.data.generation, Form(tokenizer, spec.data.generation)
        self._batch_size, self._positions = spec.training.eval_batch_size, positions(tokenizer, config)
        self._search, self._reported = splits.search, splits.reported[""]
        train = encode_texts(
            splits.train, tokenizer, self._settings, length, key=("train", splits.fingerprint, key), form=self._form
        )
        self.train: Dataset[Any] = train
        self.sizes = {
            "train_examples": len(train),
            "search_examples": len(self._search),
            "reported_examples": len(self._reported),
        }
        self.passes = {"search": len(self._search), _REPORTED: len(self._reported)}
        self.facts: dict[str, Any] = {"prompt_form": self._form.name}
        self.notes: list[str] = []
        if train.untaught:
            total = train.untaught + len(train)
            self.notes.append(f"{train.untaught} of {total} training texts left out: no response within {length} tokens")

    def search(self, model: nn.Module) -> dict[str, float]:
        values = self._metrics(self._predict(model, self._search, "search"))
        return {f"search_{name}": value for name, value in values.items()}

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        file = directory / PREDICTIONS_FOLDER / f"{_REPORTED}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        found = read_predictions(file, len(self._reported))
        if found is None:
            found = self._predict(model, self._reported, _REPORTED)
            write_predictions(file, found)
        outputs = {one["output"] for one in found if "output" in one}
        notes = [f"collapsed to one answer to every prompt: {outputs.pop()[:80]!r}"] if len(outputs) == 1 < len(found) else []
        if cut := sum(one.get("cut", False) for one in found):
            notes.append(f"{cut} prompts cut at the left to the model's {self._positions} positions")
        metrics = self._metrics(found)
        return Reported({name: value for name, value in metrics.items() if name != "loss"}, notes)

    def _predict(self, model: nn.Module, split: Any, what: str) -> list[Prediction]:
        """One prediction for every row of `split`, in its order."""
        prompts, responses = self._form.taught(split[:])
        texts = encode(self._tokenizer, prompts, responses, max_length=None, loss="response", special=not self._form.templated)
        fits = [fit_text(text, self._positions, self._tokenizer.bos_token_id) for text in texts]
        pad = int(self._tokenizer.pad_token_id)
        name = what if self._metric == "likelihood" else "loss"  # answers take the time, where there are some
        values = log_likelihoods(model, fits, pad, self._batch_size, self._tick, name).tolist()
        if not all(map(math.isfinite, values)):
            raise ValueError("likelihoods are not finite: training has diverged")
        found: list[Prediction] = [
            {"response": response, "log_likelihood": value, "tokens": len(fit.tokens) - fit.start}
            | ({"cut": True} if fit is not text else {})
            for response, value, fit, text in zip(split["response"][:], values, fits, texts, strict=True)
        ]
        asked = [self._form.prompt(text) for text in split["text"][:]]
        outputs = [None] * len(found) if self._metric == "likelihood" else self._answers(model, asked, what)
        return [
            {"prompt": prompt, **one, **({} if output is None else {"output": output})}
            for prompt, one, output in zip(asked, found, outputs, strict=True)
        ]

    def _answers(self, model: nn.Module, prompts: list[str], what: str) -> list[Any]:
        room, first = self._positions - self._settings.max_new_tokens, self._tokenizer.bos_token_id
        tokens = encode_prompts(self._tokenizer, prompts, special=not self._form.templated)
        cut = [fitted(one, room, first) for one in tokens]
        written = generate(model, self._tokenizer, cut, self._settings, self._batch_size, self._tick, what)
        return [text.strip() for text in self._tokenizer.batch_decode(written, skip_special_tokens=True)]

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
        if self._metric != "likelihood":
            pairs = [(one["output"], one["response"].strip()) for one in found]
            values["exact_match"] = 100 * sum(output == response for output, response in pairs) / len(pairs)
        if self._metric == "chrf":
            from sacrebleu.metrics import CHRF

            values["chrf"] = float(CHRF().corpus_score([one for one, _ in pairs], [[other for _, other in pairs]]).score)
        values = {name: float(value) for name, value in values.items()}
        return values | {"score": values[self._metric]}
