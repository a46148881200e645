"""Scores of tasks that are answered in words: asks the model every question, reads its answers and keeps every prediction.

    predictions/boolq.jsonl     one line a question: prompt, output, answer (as extracted), label, right

`score: generate` reads the answer from the text that the model writes (`craft.tasks.extraction`). `score: likelihood` takes
the allowed answer whose response the model finds likeliest, `score: cloze` the option whose own text it finds likeliest
(`craft.tasks.cloze`); their lines also hold the log-likelihoods. A test's file is written whole when the test is done. A
resumed run reads the files that are there and goes on with the next test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.data import Dataset

from craft.disk import replacing
from craft.results import PREDICTIONS_FOLDER
from craft.scoring.encoding import Collator
from craft.scoring.generation import encode_prompts, fitted, generate, log_likelihoods, positions
from craft.scoring.scorer import Keep, Reported
from craft.scoring.texts import Tick, encode_texts, mean_token_loss
from craft.tasks import commonsense
from craft.tasks.cloze import choices
from craft.tasks.extraction import PATTERNS, extract, options, score
from craft.tasks.metrics import compute_reported
from craft.tasks.prompts import PROMPTS, TaughtText, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from craft.spec import RunSpec
    from craft.tasks.splits import Splits
    from craft.tasks.task import Task

Prediction = dict[str, Any]


class AnswerScorer:
    """`craft.scoring.scorer.Scorer` for a suite of question sets on which one model is trained."""

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
        """
        self._task, self._tokenizer, self._tick = task, tokenizer, tick
        self._settings = settings = spec.data.generation
        self._batch_size, self._positions = spec.training.eval_batch_size, positions(tokenizer, config)
        self._search, self._reported = splits.search, splits.reported
        train = encode_texts(splits.train, tokenizer, settings, length, key=("train", splits.fingerprint, key))
        self._search_texts = encode_texts(splits.search, tokenizer, settings, length, key=("search", splits.fingerprint, key))
        self.train: Dataset[Any] = train
        self._collator = Collator(int(tokenizer.pad_token_id))
        tests = {suffix.removeprefix("_"): len(split) for suffix, split in splits.reported.items()}
        self.sizes = {
            "train_examples": len(train),
            "search_examples": len(splits.search),
            "reported_examples": sum(tests.values()),
        }
        self.passes = {"search": len(splits.search), **tests}
        self.facts: dict[str, Any] = {
            "generation": settings.model_dump(mode="json"),
            "mixture": commonsense.mixture(spec.data),
            "tests": tests,
        }
        self.notes = commonsense.notes(spec.data, tests)
        if train.untaught:
            total = train.untaught + len(train)
            self.notes.append(f"{train.untaught} of {total} training texts left out: no response within {length} tokens")

    def search(self, model: nn.Module) -> dict[str, float]:
        loss = mean_token_loss(model, self._search_texts, self._collator, self._batch_size, self._tick)
        if not math.isfinite(loss):
            raise ValueError(f"the loss on the search split is {loss}")
        found = self._answers(model, self._search, "search")
        answers = [one["answer"] for one in found]
        values = score(self._search["group"][:], answers, self._search["label"][:]) | {"loss": loss}
        return {f"search_{name}": value for name, value in values.items()}

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        outputs: dict[str, tuple[list[str], list[str]]] = {}
        collapsed: list[str] = []
        cut = 0
        folder = directory / PREDICTIONS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, split in self._reported.items():
            test = suffix.removeprefix("_")
            file = folder / f"{test}.jsonl"
            found = read_predictions(file, len(split))
            if found is None:
                found = self._answers(model, split, test)
                write_predictions(file, found)
            answers = [one["answer"] for one in found]
            outputs[suffix] = answers, split["label"][:]
            cut += sum(one.get("cut", False) for one in found)
            if len(split) > 1 and len(set(answers)) == 1:
                collapsed.append(f"{test} ({answers[0] or 'none'})")
            if len(outputs) < len(self._reported):
                so_far = compute_reported(self._task, outputs)
                keep({name: value for name, value in so_far.items() if name.startswith("accuracy_")})
        notes = [f"collapsed to one answer to every question: {', '.join(collapsed)}"] if collapsed else []
        if cut:
            notes.append(f"{cut} prompts cut at the left to the model's {self._positions} positions")
        return Reported(compute_reported(self._task, outputs), notes)

    def _answers(self, model: nn.Module, split: Any, what: str) -> list[Prediction]:
        """One prediction for every row of `split`, in its order."""
        prompt = PROMPTS[self._settings.prompt]
        rows = split[:]
        prompts = [prompt.for_evaluation(*pair) for pair in zip(rows["text"], rows["input"], strict=True)]
        answer = {"generate": self._generated, "likelihood": self._likeliest, "cloze": self._cloze}[self._settings.score]
        found = answer(model, prompts, rows, what)
        for one, label in zip(found, rows["label"], strict=True):
            one |= {"label": label, "right": one["answer"] == label}
        return found

    def _generated(self, model: nn.Module, prompts: list[str], rows: dict[str, list[str]], what: str) -> list[Prediction]:
        room = self._positions - self._settings.max_new_tokens
        whole = encode_prompts(self._tokenizer, prompts)
        tokens = [fitted(one, room, self._tokenizer.bos_token_id) for one in whole]
        written = generate(model, self._tokenizer, tokens, self._settings, self._batch_size, self._tick, what)
        outputs = self._tokenizer.batch_decode(written, skip_special_tokens=True)
        return [
            {"prompt": prompt, "output": output, "answer": extract(output, family)} | _if_cut(len(one) > room)
            for prompt, output, family, one in zip(prompts, outputs, rows["family"], whole, strict=True)
        ]

    def _likeliest(self, model: nn.Module, prompts: list[str], rows: dict[str, list[str]], what: str) -> list[Prediction]:
        allowed = [
            options(text, family) or tuple(PATTERNS[family].pattern.split("|"))
            for text, family in zip(rows["text"], rows["family"], strict=True)
        ]
        responses = [commonsense.response(answer) for answers in allowed for answer in answers]
        texts = encode(
            self._tokenizer,
            [prompt for prompt, answers in zip(prompts, allowed, strict=True) for _ in answers],
            responses,
            max_length=None,
            loss="response",
        )
        fits = [self._fitted(text) for text in texts]
        values = self._log_likelihoods(model, fits, what)
        found: list[Prediction] = []
        at = 0
        for prompt, answers in zip(prompts, allowed, strict=True):
            mine, cut = values[at : at + len(answers)], any(texts[at + n] is not fits[at + n] for n in range(len(answers)))
            best = max(range(len(answers)), key=mine.__getitem__)
            one = {"prompt": prompt, "output": responses[at + best], "answer": answers[best]}
            found.append(one | {"log_likelihoods": dict(zip(answers, mine, strict=True))} | _if_cut(cut))
            at += len(answers)
        return found

    def _cloze(self, model: nn.Module, prompts: list[str], rows: dict[str, list[str]], what: str) -> list[Prediction]:
        """The option whose own text is the likeliest; `prompts`, which name the options, are not read."""
        asked = [choices(*row) for row in zip(rows["text"], rows["input"], rows["family"], strict=True)]
        contexts = [text for one in asked for text in one.contexts]
        continuations = [text for one in asked for text in one.continuations]
        texts = encode(self._tokenizer, contexts, continuations, max_length=None, loss="response", ends=False)
        fits = [self._fitted(text) for text in texts]
        values = self._log_likelihoods(model, fits, what)
        normalized = self._normalized(model, values, continuations, fits, what)
        found: list[Prediction] = []
        at = 0
        for one in asked:
            mine = slice(at, at + len(one.answers))
            best = at + max(range(len(one.answers)), key=normalized[mine].__getitem__)
            at = mine.stop
            line: Prediction = {
                "prompt": contexts[best],
                "output": continuations[best].strip(),
                "answer": one.answers[best - mine.start],
            }
            line["log_likelihoods"] = dict(zip(one.answers, values[mine], strict=True))
            line["normalized"] = dict(zip(one.answers, normalized[mine], strict=True))
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

    def _log_likelihoods(self, model: nn.Module, texts: list[TaughtText], what: str) -> list[float]:
        pad = int(self._tokenizer.pad_token_id)
        values: list[float] = log_likelihoods(model, texts, pad, self._batch_size, self._tick, what).tolist()
        if not all(map(math.isfinite, values)):
            raise ValueError("likelihoods are not finite: training has diverged")
        return values

    def _fitted(self, text: TaughtText) -> TaughtText:
        return fit_text(text, self._positions, self._tokenizer.bos_token_id)


def fit_text(text: TaughtText, positions: int, first: int | None) -> TaughtText:
    """`text`, cut at the left to so many positions, as `fitted` does."""
    tokens = fitted(text.tokens, positions, first)
    return text if tokens is text.tokens else TaughtText(tokens, max(1, text.start - len(text.tokens) + len(tokens)))


def _if_cut(cut: bool) -> dict[str, bool]:
    return {"cut": True} if cut else {}


def write_predictions(file: Path, predictions: Sequence[Prediction]) -> None:
    with replacing(file) as aside:
        aside.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in predictions), encoding="utf-8")


def read_predictions(file: Path, expected: int) -> list[Prediction] | None:
    """The predictions of a test that is done; None if it is not."""
    if not file.is_file():
        return None
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
    return found if len(found) == expected else None
