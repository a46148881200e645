"""`audit_adapter`: could this adapter be smaller, and what would that cost?

    folder  ->  scored, with and without its change  ->  cut to sizes [and trained on]  ->  scored  ->  the smallest to keep

All sizes answer the same held-out rows, so each is compared with the uncut adapter row by row.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from peft import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from craft.audit.changes import Changes, changes_of, ranks_for, switch, warnings_of, write_craft, write_lora
from craft.audit.folder import WEIGHTS_FILE, Folder, read_folder
from craft.audit.paired import Answers, compare_answers
from craft.audit.verdict import Audit, Size
from craft.methods import find_cutting
from craft.models.quiet import quiet_libraries
from craft.results import PREDICTIONS_FOLDER
from craft.scoring.choose import make_scorer, splits_of
from craft.scoring.predictions import read_file
from craft.scoring.scorer import PREDICTIONS_FILE, Scorer
from craft.settings import CustomTask, DataSettings, TrainingSettings
from craft.spec import RECOVERY, RunSpec
from craft.tasks import find_task
from craft.tasks.files import read_rows
from craft.tasks.metrics import METRICS, decide
from craft.tasks.task import Task
from craft.trainer.checkpoint import rewrite
from craft.trainer.loop import Loop
from craft.trainer.meter import Meter
from craft.trainer.process import isolate_process, run_repeatably
from craft.trainer.steps import total_steps

NAME = "audited"
SHARES = (2, 4, 8, 16)
"""An adapter is cut to its parameters divided by these."""
CRAFT = "CRAFT"
OWN_CUT = ("LORA", CRAFT)
"""Types whose sizes are of the same type."""
RATE = 1e-3
MISNAMED = 20.0
"""So many points more by another order of the labels show that the order is wrong."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Data:
    """The rows to score, and to train on.

    Attributes:
        held_out: the file that is scored.
        train: the file that cuts are trained on; they are scored as cut if there is none.
        text: one text column, or two; all but the label's if empty.
        label: the column of classes or numbers.
        prompt, response, messages: columns for a language model.
        plain: whether it reads prompts as they stand, not in its tokenizer's chat template.
        labels: names of the classes, in the order of the head's outputs.
        metric: the score; accuracy, pearson or likelihood if None.
    """

    held_out: str
    train: str | None = None
    text: tuple[str, ...] = ()
    label: str | None = None
    prompt: tuple[str, ...] = ()
    response: str | None = None
    messages: str | None = None
    labels: tuple[str, ...] | None = None
    metric: str | None = None
    max_length: int = 256
    plain: bool = False


def audit_adapter(
    folder: str | Path,
    data: Data,
    *,
    base: str | None = None,
    within: float = 1.0,
    sure: float = 0.9,
    to: str | Path | None = None,
    tell: Tell = lambda line: None,
) -> Audit:
    """Audits the adapter in a folder.

    Args:
        base: name or folder of the base model here, if it is not the name in the folder.
        within: points that may be lost.
        sure: the chance with which at most these are.
        to: gets the smallest adapter that is enough; made if there is one.
        tell: gets a line for each part that is done.

    Raises:
        ValueError: the folder, the data or the base cannot be used; nothing was written.
    """
    place = read_folder(Path(folder), base)
    spec, task = _describe(place, data)
    with tempfile.TemporaryDirectory(prefix="craft-audit-") as scratch, isolate_process(), quiet_libraries():
        result = run_repeatably(lambda notes: _Auditor(place, spec, task, data, Path(scratch), tell).audit(within, sure))
        if to is not None and (size := result.enough) is not None and size.folder is not None:
            shutil.copytree(size.folder, to)
    return result


class _Auditor:
    def __init__(self, folder: Folder, spec: RunSpec, task: Task, data: Data, scratch: Path, tell: Tell) -> None:
        self._folder, self._spec, self._task, self._data = folder, spec, task, data
        self._scratch, self._tell = scratch, tell
        self._splits, self._tokenizer = splits_of(spec, task), folder.tokenizer()

    def audit(self, within: float, sure: float) -> Audit:
        model = self._load(self._folder)
        changes = changes_of(model)
        self._tell(f"{self._folder.peft_type} with {changes.parameters:,} parameters in {len(changes.spectra)} modules")
        uncut = self._answer(model, "uncut")
        self._check_order(uncut)
        switch(model, on=False)
        without = self._answer(model, "without")
        del model
        self._tell(f"{self._task.primary} {uncut.score():.1f}; without its change {without.score():.1f}; {len(uncut)} rows")
        budgets = [changes.parameters // share for share in SHARES]
        sizes = [size for budget in budgets if (size := self._size(changes, budget, uncut))]
        lines = [*_doubts(uncut, without, within, self._task.kind == "classification"), *warnings_of(changes)]
        if self._folder.peft_type not in OWN_CUT:
            lines.append(f"a size of {self._folder.peft_type} is a LoRA of the same modules")
        return Audit(
            self._folder, self._task.primary, len(uncut), changes.parameters, uncut.score(), without.score(), tuple(sizes),
            within, sure, self._data.train is not None, changes.shares(), tuple(lines),
        )  # fmt: skip

    def _load(self, folder: Folder, trains: bool = False) -> Any:
        return folder.load(self._task.kind, self._task.labels, self._tokenizer.pad_token_id, trains=trains)

    def _size(self, changes: Changes, budget: int, uncut: Answers) -> Size | None:
        written = self._cut(changes, budget, self._scratch / str(budget) / "adapter")
        if written is None:
            return None
        cut, ranks, parameters = written
        model = self._load(cut, trains=self._data.train is not None)
        if self._data.train is not None:
            self._train_on(model, cut.path)
        answers = self._answer(model, str(budget))
        gap = compare_answers(uncut, answers)
        self._tell(f"{parameters:,} parameters: {answers.score():.1f} ({gap.mean:+.1f}, {gap.low:+.1f} to {gap.high:+.1f})")
        return Size(parameters, ranks, answers.score(), gap, cut.path)

    def _cut(self, changes: Changes, budget: int, to: Path) -> tuple[Folder, Mapping[str, int], int] | None:
        """Writes the adapter with at most so many parameters; None if one direction takes more."""
        if self._folder.peft_type == CRAFT:
            written = write_craft(self._folder, budget, to)
            return written if any(written[1].values()) else None
        ranks = ranks_for(changes, budget)
        if not any(ranks.values()):
            return None
        parameters = sum(rank * changes.costs[name] for name, rank in ranks.items())
        return write_lora(self._folder, changes, ranks, to), ranks, parameters

    def _scorer(self, model: Any) -> Scorer:
        # A new one each time: a scorer gives its last outputs again while the weights are the same, switched off or not.
        return make_scorer(self._spec, self._task, self._splits, self._tokenizer, model, lambda *_: None)

    def _train_on(self, model: Any, folder: Path) -> None:
        scorer = self._scorer(model)
        steps = math.ceil(RECOVERY * total_steps(self._spec.training, scorer.examples["train_examples"]))
        short = self._spec.training.model_copy(update={"max_steps": steps, "evaluate_every": "end"})
        make_hold = find_cutting("craft").hold if self._folder.peft_type == CRAFT else None
        hold = make_hold(model) if make_hold is not None else lambda: None
        run = self._spec.model_copy(update={"training": short})
        loop = Loop(run, self._task.kind, model, scorer.train, Meter(), hold=hold)
        for _ in loop.train():
            pass
        model.eval()
        learnt = get_peft_model_state_dict(model, save_embedding_layers=False)

        def save(aside: Path) -> None:
            before = load_file(aside / WEIGHTS_FILE)
            now = {name: learnt.get(name, old).detach().to("cpu", old.dtype).contiguous() for name, old in before.items()}
            save_file(now, aside / WEIGHTS_FILE, metadata={"format": "pt"})

        rewrite(folder, save)

    def _answer(self, model: Any, name: str) -> Answers:
        place = self._scratch / f"answers-{name}"
        place.mkdir()
        self._scorer(model).reported(model, place, lambda scores: None)
        primary = self._task.primary
        if self._task.kind != "generation":
            outputs = load_file(place / PREDICTIONS_FILE)
            return Answers(primary, (decide(outputs["outputs"].numpy(), self._task.kind), outputs["labels"].numpy()))
        (file,) = (place / PREDICTIONS_FOLDER).glob("reported.jsonl*")
        lines = read_file(file)
        return Answers(primary, tuple(np.array([line[column] for line in lines]) for column in METRICS[primary].reads))

    def _check_order(self, uncut: Answers) -> None:
        """Raises ValueError if another order of the labels fits the head far better."""
        if self._task.kind != "classification" or self._data.labels is not None:
            return
        from scipy.optimize import linear_sum_assignment

        many = len(self._task.labels)
        table = np.zeros((many, many))
        np.add.at(table, (uncut.sides[0].astype(int), uncut.sides[1].astype(int)), 1)
        rows, columns = linear_sum_assignment(-table)
        if 100 * (table[rows, columns].sum() - np.trace(table)) / table.sum() > MISNAMED:
            order = " ".join(self._task.labels[column] for column in columns)
            as_named, best = (100 * right / table.sum() for right in (np.trace(table), table[rows, columns].sum()))
            raise ValueError(
                f"the head seems to have its classes in another order than {' '.join(self._task.labels)}, by which it is right "
                f"in {as_named:.0f} %: with `{order}` it is in {best:.0f} %. Give the order of its training as --labels"
            )


def _doubts(uncut: Answers, without: Answers, within: float, has_classes: bool) -> list[str]:
    """Returns sentences on what these rows do not show of the whole adapter: without it, a smaller one is enough of nothing."""
    lines = []
    if (gain := compare_answers(without, uncut)).low <= within:
        interval = f"{gain.mean:+.1f}, {gain.low:+.1f} to {gain.high:+.1f}"
        shown = f"these rows do not show that the adapter's change helps by more than the {within:g} points that may be lost"
        lines.append(f"{shown} ({interval}), so any size may seem enough")
    if has_classes:
        labels = uncut.sides[1]
        names, counts = np.unique(labels, return_counts=True)
        constant = Answers(uncut.metric, (np.full_like(uncut.sides[0], names[counts.argmax()]), labels))
        if compare_answers(constant, uncut).low <= 0:
            lines.append(f"it is not shown to be above the most frequent class ({constant.score():.1f})")
    return lines


def _describe(folder: Folder, data: Data) -> tuple[RunSpec, Task]:
    """Returns the audit as a run on own data, and its task. Raises ValueError where data and adapter do not fit."""
    in_words, outputs = folder.is_language_model, folder.outputs
    if in_words:
        if not (data.messages or (data.prompt and data.response)):
            raise ValueError(f"{folder.path} is of a language model: name --prompt and --response, or --messages, of the data")
        if data.plain and data.messages:
            raise ValueError("chats are read in the tokenizer's template: give --plain with --prompt and --response alone")
        columns: dict[str, Any] = {
            "prompt": data.prompt,
            "response": data.response,
            "messages": data.messages,
            "kind": "generation",
        }
    else:
        if outputs is None:
            raise ValueError(
                f"{folder.path} holds no task head (modules_to_save), and a random one has no score; save the adapter with "
                "PEFT's task_type SEQ_CLS"
            )
        if data.label is None:
            raise ValueError("name the column of the labels: --label")
        names = [name for name in read_rows(data.held_out).columns if name != data.label]
        text = data.text or tuple(names)
        if not 1 <= len(text) <= 2:
            raise ValueError(f"{data.held_out} has the columns {', '.join(names)}: name one or two that hold texts by --text")
        kind = "regression" if outputs == 1 else "classification"
        columns = {"text": text, "label": data.label, "kind": kind, "labels": data.labels if outputs > 1 else None}
    own = CustomTask(train=data.train or data.held_out, validation=data.held_out, metric=data.metric, **columns)
    training = TrainingSettings(
        learning_rate=RATE, head_learning_rate=RATE, max_length=data.max_length, head_start="random", weight_decay=0.0
    )
    written: dict[str, Any] = {"generation": {"prompt": "none"}} if data.plain else {}
    if in_words:
        training = training.without_head()
    spec = RunSpec(
        model=folder.base,
        task=f"custom/{NAME}",
        method="lora",
        training=training,
        data=DataSettings(custom={NAME: own}, **written),
    )
    task = find_task(spec.task, spec.data)
    if not in_words and task.kind == "classification" and len(task.labels) != outputs:
        raise ValueError(
            f"the head of {folder.path} has {outputs} outputs, and {data.train or data.held_out} {len(task.labels)} classes "
            f"({', '.join(task.labels[:8])}): name all of them by --labels, in the order of the training"
        )
    return spec, task
