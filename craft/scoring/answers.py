"""Scores of tasks that are answered in words: asks the model every question, reads its answers and keeps every prediction.

    predictions/boolq.jsonl     a line for each question: row, prompt, output, answer (as extracted), label, right

`score: generate` reads the answer from the text that the model writes (`craft.tasks.extraction`). `score: likelihood` takes
the allowed answer whose response the model finds likeliest, `score: cloze` the option whose own text it finds likeliest
(`craft.tasks.cloze`); their lines also hold the log-likelihoods. A test's file is written when the test is done. A resumed
run reads the files that are there and continues with the next test.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from craft.results import PREDICTIONS_FOLDER
from craft.scoring.credits import CREDITS, SEARCH_CREDITS, credits_of
from craft.scoring.encoding import Collator, Encoded, encode_texts, longest_input, positions, token_key
from craft.scoring.generation import cut_left, encode_prompts, generate, log_likelihoods
from craft.scoring.passes import Tick, mean_token_loss
from craft.scoring.predictions import Prediction, read_file, write_predictions
from craft.scoring.scorer import Keep, Reported, count_examples, split_name
from craft.tasks import commonsense
from craft.tasks.cloze import Choices, read_choices
from craft.tasks.extraction import PATTERNS, RESPONSE, extract, options, score
from craft.tasks.forms import Form
from craft.tasks.metrics import compute_reported
from craft.tasks.prompts import PROMPTS, TaughtText, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from craft.spec import RunSpec
    from craft.tasks.splits import Splits
    from craft.tasks.task import Task


class WordScorer(ABC):
    """The data and the predictions of a model that answers in words, for both scorers of such answers."""

    def __init__(
        self, spec: RunSpec, task: Task, splits: Splits, tokenizer: PreTrainedTokenizerBase, model: nn.Module, tick: Tick,
        *, form: Form | None = None,
    ) -> None:  # fmt: skip
        """Encodes the training texts. `model` is the base, whose positions bound a text; `form` is that of own instructions."""
        self._task, self._tokenizer, self._tick, self._form = task, tokenizer, tick, form
        self._settings, self._batch_size = spec.data.generation, spec.training.eval_batch_size
        self._positions, self._splits = positions(tokenizer, model), splits
        self._length = longest_input(spec.training.max_length, tokenizer, model)
        self._key = token_key(spec)
        self._reported = {split_name(suffix): split for suffix, split in splits.reported.items()}
        train = self._encode("train", splits.train)
        self.train = train
        reported = {name: len(split) for name, split in self._reported.items()}
        self.examples, self.passes = count_examples(len(train), len(splits.search), reported)
        self.facts: dict[str, Any] = {}
        self.searched: dict[str, str] = {}
        self.notes: list[str] = []
        if train.lost:
            total = train.lost + len(train)
            self.notes.append(f"{train.lost} of {total} training texts left out: no response within {self._length} tokens")

    @abstractmethod
    def _predict(self, model: nn.Module, split: Any, name: str) -> list[Prediction]:
        """Makes a prediction for every row of `split`, in its order; `name` is for ticks."""

    def _encode(self, name: str, split: Any) -> Encoded:
        key = name, self._splits.fingerprint, self._key
        return encode_texts(split, self._tokenizer, self._settings, self._length, key=key, form=self._form)

    def _predict_reported(self, model: nn.Module, name: str, directory: Path) -> list[Prediction]:
        """Makes the predictions of a reported split, or reads them if their file is there already."""
        split, file = self._reported[name], directory / PREDICTIONS_FOLDER / f"{name}.jsonl"
        if file.is_file() and len(predictions := read_file(file)) == len(split):
            return predictions
        lines = zip(split["row"][:], self._predict(model, split, name), strict=True)
        predictions = [{"row": row} | prediction for row, prediction in lines]
        write_predictions(file, predictions)
        return predictions

    def _cut_note(self, predictions: Sequence[Prediction]) -> list[str]:
        cut = sum(prediction.get("cut", False) for prediction in predictions)
        return [f"{cut} prompts cut at the left to the model's {self._positions} positions"] if cut else []

    def _write(self, model: nn.Module, prompts: Sequence[str], name: str, special: bool = True) -> tuple[list[str], list[bool]]:
        """Lets the model continue each prompt. Returns the texts, and whether each prompt was cut."""
        room = self._positions - self._settings.max_new_tokens
        tokens = encode_prompts(self._tokenizer, prompts, special)
        fits = [cut_left(ids, room, self._tokenizer.bos_token_id) for ids in tokens]
        outputs = generate(model, self._tokenizer, fits, self._settings, self._batch_size, self._tick, name)
        return self._tokenizer.batch_decode(outputs, skip_special_tokens=True), [len(ids) > room for ids in tokens]

    def _log_likelihoods(self, model: nn.Module, texts: list[TaughtText], name: str) -> list[float]:
        pad = int(self._tokenizer.pad_token_id)
        values: list[float] = log_likelihoods(model, texts, pad, self._batch_size, self._tick, name).tolist()
        if not all(map(math.isfinite, values)):
            raise ValueError("likelihoods are not finite: training has diverged")
        return values

    def _fit(self, text: TaughtText) -> TaughtText:
        """Cuts `text` at the left to the model's positions; returns `text` itself if it fits."""
        tokens = cut_left(text.tokens, self._positions, self._tokenizer.bos_token_id)
        return text if tokens is text.tokens else TaughtText(tokens, max(1, text.start - len(text.tokens) + len(tokens)))


class AnswerScorer(WordScorer):
    """`craft.scoring.scorer.Scorer` for a suite of question sets on which one model is trained."""

    def __init__(self, spec: RunSpec, *arguments: Any) -> None:
        super().__init__(spec, *arguments)
        self._search_texts = self._encode("search", self._splits.search)
        self._collator = Collator(int(self._tokenizer.pad_token_id))
        tests = {name: len(split) for name, split in self._reported.items()}
        settings = self._settings.model_dump(mode="json")
        self.facts = {"generation": settings, "mixture": commonsense.mixture(spec.data).name, "tests": tests}
        self.notes = [*commonsense.notes(spec.data, tests), *self.notes]

    def search(self, model: nn.Module) -> dict[str, float]:
        loss = mean_token_loss(model, self._search_texts, self._collator, self._batch_size, self._tick)
        if not math.isfinite(loss):
            raise ValueError(f"the loss on the search split is {loss}")
        split = self._splits.search
        answers, labels = [prediction["answer"] for prediction in self._predict(model, split, "search")], split["label"][:]
        values = score(split["group"][:], answers, labels) | {"loss": loss}
        self.searched = _credits(split["group"][:], np.array(answers) == np.array(labels), SEARCH_CREDITS)
        return {f"search_{name}": value for name, value in values.items()}

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        outputs: dict[str, tuple[list[str], list[str]]] = {}
        predictions: list[Prediction] = []
        collapsed: list[str] = []
        for test, split in self._reported.items():
            predictions += (of_test := self._predict_reported(model, test, directory))
            answers = [prediction["answer"] for prediction in of_test]
            outputs[f"_{test}"] = answers, split["label"][:]
            if len(split) > 1 and len(set(answers)) == 1:
                collapsed.append(f"{test} ({answers[0] or 'none'})")
            metrics = compute_reported(self._task, outputs)
            if len(outputs) < len(self._reported):
                keep({name: value for name, value in metrics.items() if name.startswith("accuracy_")})
        notes = [f"collapsed to one answer to every question: {', '.join(collapsed)}"] if collapsed else []
        right = np.array([prediction["right"] for prediction in predictions])
        tests = [test for test, split in self._reported.items() for _ in range(len(split))]
        return Reported(metrics, notes + self._cut_note(predictions), _credits(tests, right, CREDITS))

    def _predict(self, model: nn.Module, split: Any, name: str) -> list[Prediction]:
        rows = split[:]
        pairs, families = list(zip(rows["text"], rows["input"], strict=True)), rows["family"]
        prompts = [PROMPTS[self._settings.prompt].for_evaluation(*pair) for pair in pairs]
        if self._settings.score == "generate":
            outputs = zip(prompts, families, *self._write(model, prompts, name), strict=True)
            predictions = [
                {"prompt": prompt, "output": output, "answer": extract(output, family)} | _mark(cut)
                for prompt, family, output, cut in outputs
            ]
        elif self._settings.score == "cloze":
            questions = [read_choices(*pair, family) for pair, family in zip(pairs, families, strict=True)]
            predictions = self._choose(model, questions, name)
        else:
            questions = []
            for prompt, text, family in zip(prompts, rows["text"], families, strict=True):
                answers = options(text, family) or tuple(PATTERNS[family].pattern.split("|"))
                questions.append(Choices(answers, (prompt,) * len(answers), tuple(map(RESPONSE.format, answers))))
            predictions = self._choose(model, questions, name)
        for prediction, label in zip(predictions, rows["label"], strict=True):
            prediction |= {"label": label, "right": prediction["answer"] == label}
        return predictions

    def _choose(self, model: nn.Module, questions: Sequence[Choices], name: str) -> list[Prediction]:
        """Chooses the likeliest of the allowed answers to each question."""
        cloze = self._settings.score == "cloze"
        contexts = [text for question in questions for text in question.contexts]
        continuations = [text for question in questions for text in question.continuations]
        texts = encode(self._tokenizer, contexts, continuations, max_length=None, loss="response", ends=not cloze)
        fits = [self._fit(text) for text in texts]
        values = self._log_likelihoods(model, fits, name)
        ranked = self._normalize(model, values, continuations, fits, name) if cloze else values
        predictions: list[Prediction] = []
        end = 0
        for question in questions:
            begin, end = end, end + len(question.answers)
            best = max(range(begin, end), key=ranked.__getitem__)
            prediction: Prediction = {
                "prompt": contexts[best],
                "output": continuations[best].strip(),
                "answer": question.answers[best - begin],
                "log_likelihoods": dict(zip(question.answers, values[begin:end], strict=True)),
            }
            if cloze:
                prediction["normalized"] = dict(zip(question.answers, ranked[begin:end], strict=True))
            predictions.append(prediction | _mark(any(texts[at] is not fits[at] for at in range(begin, end))))
        return predictions

    def _normalize(
        self, model: nn.Module, values: list[float], continuations: list[str], texts: list[TaughtText], name: str
    ) -> list[float]:
        """Makes log-likelihoods comparable between options of different lengths, as `normalize` says."""
        match self._settings.normalize:
            case "characters":
                return [value / len(text.strip()) for value, text in zip(values, continuations, strict=True)]
            case "tokens":
                return [value / (len(text.tokens) - text.start) for value, text in zip(values, texts, strict=True)]
            case "unconditional":
                # The first token that any text has here: lm-evaluation-harness takes the end of text where there is no begin.
                first = self._tokenizer.bos_token_id
                first = self._tokenizer.eos_token_id if first is None else first
                tokens = self._tokenizer(continuations, add_special_tokens=False)["input_ids"]
                alone = self._log_likelihoods(model, [self._fit(TaughtText([first, *ids], 1)) for ids in tokens], name)
                return [value - base for value, base in zip(values, alone, strict=True)]
        return values


def _mark(cut: bool) -> dict[str, bool]:
    return {"cut": True} if cut else {}


def _credits(groups: Sequence[str], right: NDArray[np.bool_], name: str) -> dict[str, str]:
    """Returns the fact `name` of the mean over groups of the share of right answers, both `(rows,)`."""
    numbers = np.unique(groups, return_inverse=True)[1]

    def mean_over_groups(rows: NDArray[np.bool_]) -> float:
        questions, hits = np.bincount(numbers[rows]), np.bincount(numbers[rows], right[rows])
        return 100 * float((hits[questions > 0] / questions[questions > 0]).mean())

    return credits_of(mean_over_groups, len(right), name)
