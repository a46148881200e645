"""`WordScorer`: scores of tasks that are answered in words. It asks the model every row and keeps every prediction.

    questions       the right answer is known: what the model writes is read, or the likeliest option is taken
    instructions    likelihood      100 · 2^-bits   bits = - Σ log2 p(token | those before it) / response tokens of the split
                    exact_match     share of answers that equal the response
                    chrf            chrF of the answers (Popović 2015), by sacrebleu
                    cloze           share of rows whose response is the likeliest of all answers that the rows have

`likelihood` is the geometric mean of a token's probability in percent. Answers are written only where they decide the score. A
likelihood of an option is divided by its characters. A split's file of predictions is written when it is scored; a resumed run
reads the files that are there and continues with the next split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedTokenizerBase

from craft.results import PREDICTIONS_FOLDER
from craft.scoring.encoding import Collator, Encoded, encode_texts, longest_input, positions, token_key
from craft.scoring.generation import cut_left, encode_prompts, generate, log_likelihoods
from craft.scoring.passes import mean_token_loss
from craft.scoring.predictions import (
    CREDITS,
    SEARCH_CREDITS,
    Keep,
    Prediction,
    Reported,
    count_examples,
    credits_of,
    read_file,
    split_name,
    write_predictions,
)
from craft.spec import RunSpec
from craft.tasks import commonsense
from craft.tasks.metrics import CLOZE, METRICS, check_finite
from craft.tasks.prompts import Option, TaughtText, encode
from craft.tasks.splits import Splits
from craft.tasks.task import Task


class WordScorer:
    """The scores of questions with a right answer (commonsense) and for own instructions."""

    def __init__(self, spec: RunSpec, task: Task, splits: Splits, tokenizer: PreTrainedTokenizerBase, model: nn.Module) -> None:
        assert task.form is not None, "only tasks that are answered in words have this scorer"
        self._task, self._tokenizer, self._splits = task, tokenizer, splits
        self._settings, self._batch_size = spec.data.generation, spec.training.eval_batch_size
        self._form, self._metric = task.form(tokenizer, self._settings), METRICS[task.primary]
        self._questions = "label" in splits.train.column_names
        self._chooses = self._settings.score == CLOZE if self._questions else task.primary == CLOZE
        self._writes = not self._chooses if self._questions else "output" in self._metric.reads
        self._positions = positions(tokenizer, model)
        if self._writes and (most := self._settings.max_new_tokens) >= self._positions:
            raise ValueError(f"max_new_tokens {most}: prompt and answer have {self._positions} positions; give fewer")
        self._reported = {split_name(suffix): split for suffix, split in splits.reported.items()}
        length = longest_input(spec.training.max_length, tokenizer, model)

        def encoded(name: str, split: Any) -> Encoded:
            key = name, splits.fingerprint, token_key(spec)
            return encode_texts(split, tokenizer, self._settings, length, key=key, form=self._form)

        self.train = train = encoded("train", splits.train)
        reported = {name: len(split) for name, split in self._reported.items()}
        self.examples, self.passes = count_examples(len(train), len(splits.search), reported)
        self.searched: dict[str, str] = {}
        lost = f"{train.lost} of {train.lost + len(train)} training texts left out: no response within {length} tokens"
        self.notes, self.facts = [lost] if train.lost else [], dict[str, Any]()
        if self._questions:
            for split in self._reported.values() if self._chooses else ():
                self._form.options(split[:])  # what cannot be read is an error before the training, not after it
            self._search_texts = encoded("search", splits.search)
            self.facts["generation"] = self._settings.model_dump(mode="json")
            self.facts |= {"mixture": commonsense.mixture(spec.data).name, "tests": reported}
            self.notes = [*commonsense.notes(spec.data, reported), *self.notes]
        else:
            self.facts["prompt_form"] = self._form.name
            self.notes += self._form.notes(splits.train[:1])

    def search(self, model: nn.Module) -> dict[str, float]:
        split = self._splits.search
        loss = {}
        if self._questions:
            collator = Collator(int(self._tokenizer.pad_token_id))
            loss["loss"] = mean_token_loss(model, self._search_texts, collator, self._batch_size)
            if not math.isfinite(loss["loss"]):
                raise ValueError(f"the loss on the search split is {loss['loss']}: training has diverged")
        predictions, groups = self._predict(model, split, "search"), self._groups(split)
        values, self.searched = self._metrics(predictions, groups) | loss, self._credits(predictions, groups, SEARCH_CREDITS)
        return {f"search_{name}": value for name, value in values.items()}

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        predictions, groups, collapsed = list[Prediction](), list[str](), list[str]()
        metrics: dict[str, float] = {}
        for name, split in self._reported.items():
            if metrics:
                keep({metric: value for metric, value in metrics.items() if metric.startswith("accuracy_")})
            predictions += (of_split := self._predict_reported(model, name, directory))
            groups += self._groups(split)
            answers = {prediction.get("answer" if self._questions else "output") for prediction in of_split} - {None}
            if len(answers) == 1 < len(of_split):
                answer = answers.pop()
                collapsed.append(f"{name} ({answer or 'none'})" if self._questions else f"{str(answer)[:80]!r}")
            metrics = self._metrics(predictions, groups)
        metrics.pop("loss", None)
        asked = "question" if self._questions else "prompt"
        notes = [f"collapsed to one answer to every {asked}: {', '.join(collapsed)}"] if collapsed else []
        if cut := sum(prediction.get("cut", False) for prediction in predictions):
            notes.append(f"{cut} prompts cut at the left to the model's {self._positions} positions")
        if unended := sum(prediction.get("unended", False) for prediction in predictions):
            most = f"{self._settings.max_new_tokens} tokens; give more (data.generation.max_new_tokens)"
            notes.append(f"{unended} of {len(predictions)} answers do not end within {most}")
        return Reported(metrics, notes, self._credits(predictions, groups, CREDITS))

    def _predict_reported(self, model: nn.Module, name: str, directory: Path) -> list[Prediction]:
        split, file = self._reported[name], directory / PREDICTIONS_FOLDER / f"{name}.jsonl"
        if file.is_file() and len(predictions := read_file(file)) == len(split):
            return predictions
        lines = zip(split["row"][:], self._predict(model, split, name), strict=True)
        predictions = [{"row": row} | prediction for row, prediction in lines]
        write_predictions(file, predictions)
        return predictions

    def _groups(self, split: Any) -> list[str]:
        return list(split["group"][:]) if self._questions else []

    def _predict(self, model: nn.Module, split: Any, name: str) -> list[Prediction]:
        """Makes a prediction for every row of `split`, in its order; `name` is for watchers."""
        rows = split[:]
        if self._chooses:
            predictions = self._choose(model, rows, name)
        elif self._questions:
            predictions = [{"prompt": prompt} for prompt in self._form.texts(rows).asked]
        else:
            predictions = self._read_responses(model, rows, "loss" if self._writes else name)  # answers take the time
        if self._writes:
            self._write(model, predictions, name)
        if self._questions:
            for prediction, family, label in zip(predictions, rows["family"], rows["label"], strict=True):
                if self._writes:
                    prediction["answer"] = commonsense.extract(prediction["output"], family)
                prediction |= {"label": label, "right": prediction["answer"] == label}
        return predictions

    def _choose(self, model: nn.Module, rows: Mapping[str, Sequence[str]], name: str) -> list[Prediction]:
        """Chooses the option that is likeliest for each of its characters; of instructions it measures the response, too."""
        predictions, every = list[Prediction](), self._form.options(rows)
        options: list[Option] = [option for of_row in every for option in of_row.values()]
        contexts, continuations = [option.context for option in options], [option.continuation for option in options]
        ends = not self._questions
        texts, fits, values = self._measure(model, contexts, continuations, name, ends=ends)
        normalized = [value / option.characters for value, option in zip(values, options, strict=True)]
        end = 0
        for of_row, response in zip(every, rows["response"], strict=True):
            begin, end = end, end + len(of_row)
            answers, places = [*of_row], range(begin, end)
            best = max(places, key=normalized.__getitem__)
            prediction: Prediction = {"prompt": contexts[best]}
            if self._questions:
                prediction["output"] = continuations[best].strip()
            else:
                at = begin + answers.index(response)
                length = len(fits[at].tokens) - fits[at].start
                prediction |= {"response": response, "log_likelihood": values[at], "tokens": length}
            prediction["answer"] = answers[best - begin]
            prediction["log_likelihoods"] = dict(zip(answers, values[begin:end], strict=True))
            prediction["normalized"] = dict(zip(answers, normalized[begin:end], strict=True))
            predictions.append(prediction | _mark(cut=any(texts[at] is not fits[at] for at in places)))
        return predictions

    def _read_responses(self, model: nn.Module, rows: Mapping[str, Sequence[str]], name: str) -> list[Prediction]:
        contexts, taught, asked = self._form.texts(rows)
        texts, fits, values = self._measure(model, contexts, taught, name)
        responses = rows["response"]
        if self._form.templated and (self._writes or not all(responses)):
            # an answer, as what is taught, may hold thoughts and calls of tools
            parts = [text.tokens[text.start :] for text in texts]
            responses = [part.strip() for part in self._tokenizer.batch_decode(parts, skip_special_tokens=True)]
        return [
            {"prompt": prompt, "response": response, "log_likelihood": value, "tokens": len(fit.tokens) - fit.start}
            | _mark(cut=fit is not text)
            for prompt, response, value, fit, text in zip(asked, responses, values, fits, texts, strict=True)
        ]

    def _measure(
        self, model: nn.Module, contexts: Sequence[str], continuations: Sequence[str], name: str, ends: bool = True
    ) -> tuple[list[TaughtText], list[TaughtText], list[float]]:
        """Returns the texts, the texts cut at the left to the model's positions, and the log-likelihoods of continuations."""
        special, first = not self._form.templated, self._tokenizer.bos_token_id
        texts = encode(self._tokenizer, contexts, continuations, max_length=None, loss="response", ends=ends, special=special)
        fits = []
        for text in texts:
            tokens = cut_left(text.tokens, self._positions, first)
            start = max(1, text.start - len(text.tokens) + len(tokens))
            fits.append(text if tokens is text.tokens else TaughtText(tokens, start))
        pad = int(self._tokenizer.pad_token_id)
        values: list[float] = log_likelihoods(model, fits, pad, self._batch_size, name).tolist()
        if not all(map(math.isfinite, values)):
            raise ValueError("likelihoods are not finite: training has diverged")
        return texts, fits, values

    def _write(self, model: nn.Module, predictions: Sequence[Prediction], name: str) -> None:
        """Puts what the model writes after each prompt into its prediction."""
        room = self._positions - self._settings.max_new_tokens
        prompts = [prediction["prompt"] for prediction in predictions]
        tokens = encode_prompts(self._tokenizer, prompts, not self._form.templated)
        fits = [cut_left(ids, room, self._tokenizer.bos_token_id) for ids in tokens]
        outputs = generate(model, self._tokenizer, fits, self._settings, self._batch_size, name)
        written = self._tokenizer.batch_decode(outputs, skip_special_tokens=True)
        for prediction, output, ids, answer in zip(predictions, written, tokens, outputs, strict=True):
            prediction["output"] = output if self._questions else output.strip()
            ends = self._questions or len(answer) < self._settings.max_new_tokens
            prediction |= _mark(cut=len(ids) > room, unended=not ends)

    def _metrics(self, predictions: Sequence[Prediction], groups: Sequence[str]) -> dict[str, float]:
        """Computes the accuracies of questions; of instructions the task's metric and all that need no more than is there."""
        if self._questions:
            return commonsense.score(groups, *([line[name] for line in predictions] for name in ("answer", "label")))
        sums, tokens = (read_column(predictions, name) for name in METRICS["likelihood"].reads)
        loss = -sums.sum() / tokens.sum()
        # A ratio's error, by how far each response's sum is from the mean's.
        squares, rows = float(np.square(sums + loss * tokens).sum()), len(predictions)
        values = {
            name: 100 * metric.compute(*(read_column(predictions, column) for column in metric.reads))
            for name, metric in METRICS.items()
            if metric is self._metric
            or (name in self._task.metrics and not metric.package and {*metric.reads} <= predictions[0].keys())
        }
        check_finite(self._task, values)
        values |= {
            "likelihood_error": values["likelihood"] * math.sqrt(squares * rows / max(1, rows - 1)) / tokens.sum(),
            "bits_per_token": loss / math.log(2),
            "loss": loss,
        }
        return {name: float(value) for name, value in values.items()} | {"score": values[self._task.primary]}

    def _credits(self, predictions: Sequence[Prediction], groups: Sequence[str], name: str) -> dict[str, str]:
        """Returns the fact `name`; of questions that of the mean over groups of the share of right answers."""
        if not self._questions:
            sides = [read_column(predictions, column) for column in self._metric.reads] if self._metric.credits else []

            def score(rows: NDArray[np.bool_]) -> float:
                return 100 * self._metric.compute(*(side[rows] for side in sides))

            return credits_of(score, len(predictions), name) if sides else {}
        right, numbers = np.array([line["right"] for line in predictions]), np.unique(groups, return_inverse=True)[1]

        def mean_over_groups(rows: NDArray[np.bool_]) -> float:
            questions, hits = np.bincount(numbers[rows]), np.bincount(numbers[rows], right[rows])
            return 100 * float((hits[questions > 0] / questions[questions > 0]).mean())

        return credits_of(mean_over_groups, len(right), name)


def _mark(**marks: bool) -> dict[str, bool]:
    return {name: True for name, holds in marks.items() if holds}


def read_column(predictions: Sequence[Prediction], name: str) -> NDArray[Any]:
    """Returns a column of predictions: texts without blanks around them, as objects, or float64."""
    cells = [prediction[name] for prediction in predictions]
    if any(isinstance(cell, str) for cell in cells):
        return np.array([cell.strip() for cell in cells], dtype=object)  # numpy's own texts are all as long as the longest
    return np.array(cells, dtype=np.float64)
