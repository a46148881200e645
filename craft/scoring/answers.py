"""Scores of tasks that are answered in words: asks the model every question, reads its answers and keeps every prediction.

    predictions/boolq.jsonl     one line a question: row, prompt, output, answer (as extracted), label, right

`score: generate` reads the answer from the text that the model writes (`craft.tasks.extraction`). `score: likelihood` takes
the allowed answer whose response the model finds likeliest, `score: cloze` the option whose own text it finds likeliest
(`craft.tasks.cloze`); their lines also hold the log-likelihoods. A test's file is written whole when the test is done. A
resumed run reads the files that are there and continues with the next test.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset

from craft.results import PREDICTIONS_FOLDER
from craft.scoring.credits import credits_of
from craft.scoring.encoding import Collator, positions
from craft.scoring.generation import encode_prompts, fitted, generate, log_likelihoods
from craft.scoring.predictions import Prediction, read_file, write_predictions
from craft.scoring.scorer import Keep, Reported
from craft.scoring.texts import EncodedTexts, Tick, encode_texts, mean_token_loss
from craft.tasks import commonsense
from craft.tasks.cloze import Choices, choices
from craft.tasks.extraction import PATTERNS, extract, options, score
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
        self,
        spec: RunSpec,
        task: Task,
        splits: Splits,
        tokenizer: PreTrainedTokenizerBase,
        model: nn.Module,
        length: int,
        key: tuple[object, ...],
        tick: Tick,
        *,
        form: Form | None = None,
    ) -> None:
        """
        Args:
            model: the base model, whose positions bound a text.
            length: tokens a training text is cut to.
            key: everything but the data's fingerprint that decides the tokens of the splits.
            tick: called after every batch.
            form: of own instructions.
        """
        self._task, self._tokenizer, self._tick, self._form = task, tokenizer, tick, form
        self._settings, self._batch_size = spec.data.generation, spec.training.eval_batch_size
        self._positions, self._splits = positions(tokenizer, model), splits
        self._text_length, self._text_key = length, key
        self._reported = {suffix.removeprefix("_") or "reported": split for suffix, split in splits.reported.items()}
        train = self._encoded("train", splits.train)
        self.train: Dataset[Any] = train
        reported = {name: len(split) for name, split in self._reported.items()}
        self.sizes = {
            "train_examples": len(train),
            "search_examples": len(splits.search),
            "reported_examples": sum(reported.values()),
        }
        self.passes = {"search": len(splits.search), **reported}
        self.facts: dict[str, Any] = {}
        self.notes: list[str] = []
        if train.untaught:
            total = train.untaught + len(train)
            self.notes.append(f"{train.untaught} of {total} training texts left out: no response within {length} tokens")

    @abstractmethod
    def _predict(self, model: nn.Module, split: Any, what: str) -> list[Prediction]:
        """One prediction for every row of `split`, in its order."""

    def _encoded(self, name: str, split: Any) -> EncodedTexts:
        key = name, self._splits.fingerprint, self._text_key
        return encode_texts(split, self._tokenizer, self._settings, self._text_length, key=key, form=self._form)

    def _predict_reported(self, model: nn.Module, name: str, directory: Path) -> list[Prediction]:
        """The predictions of a reported split; they are read if their file is there already."""
        split, file = self._reported[name], directory / PREDICTIONS_FOLDER / f"{name}.jsonl"
        if file.is_file():
            found = read_file(file)
            if len(found) == len(split):
                return found
        found = [{"row": row} | line for row, line in zip(split["row"][:], self._predict(model, split, name), strict=True)]
        write_predictions(file, found)
        return found

    def _cut_note(self, predictions: Sequence[Prediction]) -> list[str]:
        cut = sum(one.get("cut", False) for one in predictions)
        return [f"{cut} prompts cut at the left to the model's {self._positions} positions"] if cut else []

    def _write(self, model: nn.Module, prompts: Sequence[str], what: str, special: bool = True) -> tuple[list[str], list[bool]]:
        """What the model writes after each prompt, and whether the prompt was cut."""
        room = self._positions - self._settings.max_new_tokens
        whole = encode_prompts(self._tokenizer, prompts, special)
        tokens = [fitted(one, room, self._tokenizer.bos_token_id) for one in whole]
        written = generate(model, self._tokenizer, tokens, self._settings, self._batch_size, self._tick, what)
        return self._tokenizer.batch_decode(written, skip_special_tokens=True), [len(one) > room for one in whole]

    def _log_likelihoods(self, model: nn.Module, texts: list[TaughtText], what: str) -> list[float]:
        pad = int(self._tokenizer.pad_token_id)
        values: list[float] = log_likelihoods(model, texts, pad, self._batch_size, self._tick, what).tolist()
        if not all(map(math.isfinite, values)):
            raise ValueError("likelihoods are not finite: training has diverged")
        return values

    def _fitted(self, text: TaughtText) -> TaughtText:
        """`text`, cut at the left to the model's positions; `text` itself if it fits."""
        tokens = fitted(text.tokens, self._positions, self._tokenizer.bos_token_id)
        return text if tokens is text.tokens else TaughtText(tokens, max(1, text.start - len(text.tokens) + len(tokens)))


class AnswerScorer(WordScorer):
    """`craft.scoring.scorer.Scorer` for a suite of question sets on which one model is trained."""

    def __init__(self, spec: RunSpec, *arguments: Any) -> None:
        super().__init__(spec, *arguments)
        self._search_texts = self._encoded("search", self._splits.search)
        self._collator = Collator(int(self._tokenizer.pad_token_id))
        tests = {name: len(split) for name, split in self._reported.items()}
        self.facts = {
            "generation": self._settings.model_dump(mode="json"),
            "mixture": commonsense.mixture(spec.data),
            "tests": tests,
        }
        self.notes = [*commonsense.notes(spec.data, tests), *self.notes]

    def search(self, model: nn.Module) -> dict[str, float]:
        loss = mean_token_loss(model, self._search_texts, self._collator, self._batch_size, self._tick)
        if not math.isfinite(loss):
            raise ValueError(f"the loss on the search split is {loss}")
        split = self._splits.search
        answers = [one["answer"] for one in self._predict(model, split, "search")]
        values = score(split["group"][:], answers, split["label"][:]) | {"loss": loss}
        return {f"search_{name}": value for name, value in values.items()}

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        outputs: dict[str, tuple[list[str], list[str]]] = {}
        predictions: list[Prediction] = []
        collapsed: list[str] = []
        for test, split in self._reported.items():
            found = self._predict_reported(model, test, directory)
            answers = [one["answer"] for one in found]
            outputs[f"_{test}"] = answers, split["label"][:]
            predictions += found
            if len(split) > 1 and len(set(answers)) == 1:
                collapsed.append(f"{test} ({answers[0] or 'none'})")
            if len(outputs) < len(self._reported):
                so_far = compute_reported(self._task, outputs)
                keep({name: value for name, value in so_far.items() if name.startswith("accuracy_")})
        notes = [f"collapsed to one answer to every question: {', '.join(collapsed)}"] if collapsed else []
        facts = credits_of(self._mean_over_tests(predictions), len(predictions))
        return Reported(compute_reported(self._task, outputs), notes + self._cut_note(predictions), facts)

    def _mean_over_tests(self, predictions: Sequence[Prediction]) -> Callable[[NDArray[np.bool_]], float]:
        right = np.array([one["right"] for one in predictions])
        tests = np.repeat(np.arange(len(self._reported)), [len(split) for split in self._reported.values()])

        def mean(rows: NDArray[np.bool_]) -> float:
            many, hits = np.bincount(tests[rows]), np.bincount(tests[rows], right[rows])
            return 100 * float((hits[many > 0] / many[many > 0]).mean())

        return mean

    def _predict(self, model: nn.Module, split: Any, what: str) -> list[Prediction]:
        rows = split[:]
        if self._settings.score == "cloze":
            asked = [choices(*row) for row in zip(rows["text"], rows["input"], rows["family"], strict=True)]
            found = self._choose(model, asked, what)
        else:
            prompt = PROMPTS[self._settings.prompt]
            prompts = [prompt.for_evaluation(*pair) for pair in zip(rows["text"], rows["input"], strict=True)]
            found = (self._extract if self._settings.score == "generate" else self._likeliest)(model, prompts, rows, what)
        for one, label in zip(found, rows["label"], strict=True):
            one |= {"label": label, "right": one["answer"] == label}
        return found

    def _extract(self, model: nn.Module, prompts: list[str], rows: dict[str, list[str]], what: str) -> list[Prediction]:
        return [
            {"prompt": prompt, "output": output, "answer": extract(output, family)} | _if_cut(cut)
            for prompt, family, output, cut in zip(prompts, rows["family"], *self._write(model, prompts, what), strict=True)
        ]

    def _likeliest(self, model: nn.Module, prompts: list[str], rows: dict[str, list[str]], what: str) -> list[Prediction]:
        asked = []
        for prompt, text, family in zip(prompts, rows["text"], rows["family"], strict=True):
            answers = options(text, family) or tuple(PATTERNS[family].pattern.split("|"))
            asked.append(Choices(answers, (prompt,) * len(answers), tuple(map(commonsense.response, answers))))
        return self._choose(model, asked, what)

    def _choose(self, model: nn.Module, asked: Sequence[Choices], what: str) -> list[Prediction]:
        """The likeliest of the allowed answers to each question."""
        cloze = self._settings.score == "cloze"
        contexts = [text for one in asked for text in one.contexts]
        continuations = [text for one in asked for text in one.continuations]
        texts = encode(self._tokenizer, contexts, continuations, max_length=None, loss="response", ends=not cloze)
        fits = [self._fitted(text) for text in texts]
        values = self._log_likelihoods(model, fits, what)
        ranked = self._normalized(model, values, continuations, fits, what) if cloze else values
        found: list[Prediction] = []
        at = 0
        for one in asked:
            mine = slice(at, at + len(one.answers))
            best = at + max(range(len(one.answers)), key=ranked[mine].__getitem__)
            at = mine.stop
            line: Prediction = {
                "prompt": contexts[best],
                "output": continuations[best].strip(),
                "answer": one.answers[best - mine.start],
                "log_likelihoods": dict(zip(one.answers, values[mine], strict=True)),
            }
            if cloze:
                line["normalized"] = dict(zip(one.answers, ranked[mine], strict=True))
            found.append(line | _if_cut(any(text is not fit for text, fit in zip(texts[mine], fits[mine], strict=True))))
        return found

    def _normalized(
        self, model: nn.Module, values: list[float], continuations: list[str], texts: list[TaughtText], what: str
    ) -> list[float]:
        """Log-likelihoods made comparable between options of different lengths, as `normalize` says."""
        match self._settings.normalize:
            case "characters":
                return [value / len(text.strip()) for value, text in zip(values, continuations, strict=True)]
            case "tokens":
                return [value / (len(text.tokens) - text.start) for value, text in zip(values, texts, strict=True)]
            case "unconditional":
                # The first token that any text has here: lm-evaluation-harness takes the end of text where there is no begin.
                first = self._tokenizer.bos_token_id
                first = self._tokenizer.eos_token_id if first is None else first
                ids = self._tokenizer(continuations, add_special_tokens=False)["input_ids"]
                alone = self._log_likelihoods(model, [self._fitted(TaughtText([first, *one], 1)) for one in ids], what)
                return [value - one for value, one in zip(values, alone, strict=True)]
        return values


def _if_cut(cut: bool) -> dict[str, bool]:
    return {"cut": True} if cut else {}
