"""`audit_adapter`: could this adapter be smaller, and what would that cost?

    folder  ->  scored, with and without its change  ->  cut to sizes [and trained on]  ->  scored  ->  the smallest to keep

All sizes answer the same held-out rows, so each is compared with the uncut adapter row by row.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from peft import PeftModel
from safetensors.torch import load_file

from craft.audit.changes import Changes, changes_of, check_change, switch, warnings_of, write_adapter, write_lora
from craft.audit.folder import CRAFT, NAME, Data, Folder, as_trained, describe, read_folder
from craft.audit.verdict import Answers, Audit, Size, compare_answers
from craft.models import quiet_libraries
from craft.models.adapters import CONFIG_FILE, WEIGHTS_FILE
from craft.results import PREDICTIONS_FOLDER
from craft.scoring.predictions import PREDICTIONS_FILE, read_file
from craft.scoring.scorer import Scorer, make_scorer, splits_of
from craft.scoring.words import read_column
from craft.spec import BUDGET, RECOVERY, RunSpec
from craft.tasks.custom import check_texts
from craft.tasks.metrics import CLOZE, METRICS, decide, sides_of
from craft.tasks.splits import count_seen, read_texts
from craft.trainer import cuts
from craft.trainer.adapter_folder import write_record
from craft.trainer.meter import Meter
from craft.trainer.process import isolate_process, run_repeatably
from craft.watch import watching
from craft.words import format_bytes

SHARES = (2, 4, 8, 16)
"""An adapter is cut to its parameters divided by these."""
OWN_CUT = ("LORA", CRAFT)
"""Types whose sizes are of the same type."""
FORM_ROWS = 64
"""So many rows tell in which form an adapter was trained."""
TOLD_SECONDS = 5.0
"""A scoring that takes longer tells how far it is, so often."""
SHARE_OF_GAIN = 0.1
"""Of what an adapter adds to a likelihood, whose points mean nothing by themselves, so much may be lost."""
MISNAMED = 20.0
"""So many points more by another order of the labels show that the order is wrong."""

Tell = Callable[[str], None]


def audit_adapter(
    adapter: str | Path | PeftModel,
    data: Data,
    *,
    base: str | None = None,
    within: float = 1.0,
    sure: float = 0.9,
    to: str | Path | None = None,
    tell: Tell = lambda line: None,
) -> Audit:
    """Audits an adapter. Raises ValueError if it, the data or the base cannot be used; then nothing was written.

    Args:
        adapter: a folder, or a model, whose active adapter it is.
        base: name or folder of the base model here, if it is not the name in the folder.
        within: points that may be lost, with the probability `sure`; of a likelihood at most a tenth of the adapter's gain.
        to: gets the smallest adapter that is enough; a new folder, made if there is one.
        tell: gets a line for each part that is done.
    """
    if not 0 < within <= 100:
        raise ValueError(f"within {within:g}: points of the score, above 0 and at most 100")
    if not 0 < sure < 1:
        raise ValueError(f"sure {sure:g}: a probability, above 0 and below 1")
    if to is not None and Path(to).exists():
        raise ValueError(f"to {to}: it is there already, and the smallest adapter gets a new folder; name another or remove it")
    with tempfile.TemporaryDirectory(prefix="craft-audit-") as scratch, isolate_process(), quiet_libraries():
        if not isinstance(adapter, str | Path):
            if len(active := adapter.active_adapters) > 1:
                raise ValueError(
                    f"the adapters {', '.join(active)} are active, and one is audited: call set_adapter with its name"
                )
            adapter.save_pretrained(f"{scratch}/adapter", selected_adapters=active)
            # PEFT's names of folders.
            adapter = Path(scratch, "adapter", *(name for name in active if name != "default"))
        folder = read_folder(Path(adapter), base)
        result = run_repeatably(lambda notes: _Auditor(folder, data, Path(scratch), tell).audit(within, sure))
        if to is not None and (size := result.enough) is not None and size.folder is not None:
            shutil.copytree(size.folder, to)
    return result


class _Auditor:
    def __init__(self, folder: Folder, data: Data, scratch: Path, tell: Tell) -> None:
        self._folder, self._scratch, self._tell, self._tokenizer = folder, scratch, tell, folder.tokenizer()
        self._form: str | None = None
        self._whole, self._cut_model = folder, cast(Any, None)  # what is cut, and the model that has it
        self._scored, self._left, self._told = 0, 2 + len(SHARES), time.monotonic()
        self._read(as_trained(folder, data))
        if data.held_out is None:
            self._tell(f"{self._task.name}: the reported rows of the adapter's own run")

    def _read(self, data: Data, rows: int | None = None) -> None:
        """Takes the held-out rows, or some of them, as `data` describes them."""
        self._data = data
        spec, self._task = describe(self._folder, data)
        if data.held_out is not None:
            check_texts(spec.data.custom[NAME], self._tokenizer, spec.data.generation)
            spec = spec.model_copy(update={"training": spec.training.model_copy(update={"eval_examples": rows})})
        self._spec = spec
        self._splits = splits_of(self._spec, self._task)
        self._metric = self._task.primary

    def audit(self, within: float, sure: float) -> Audit:
        adapter = self._folder
        model, changes = self._read_changes()
        self._tell(_describe_adapter(adapter, changes))
        if adapter.is_language_model and self._data.prompt and self._data.plain is None:
            self._choose_form(model)
        uncut = self._answer(model, "uncut")
        self._check_order(uncut)
        switch(model, on=False)
        without = self._answer(model, "without")
        switch(model, on=True)
        del model
        self._tell(f"{self._metric} {uncut.score():.1f}; without its change {without.score():.1f}; {len(uncut)} rows")
        if self._metric == "likelihood" and (few := SHARE_OF_GAIN * (uncut.score() - without.score())) > 0:
            within = min(within, few)
            self._tell(f"a tenth of that gain may be lost, at most: {within:.3g} points")
        budgets, imported = [changes.parameters // share for share in SHARES], self._record(changes)
        sizes = [size for budget in budgets if budget and (size := self._size(imported, budget, uncut))]
        has_classes = self._task.kind == "classification" or self._metric == CLOZE
        lines = [*(_doubts(uncut) if has_classes else []), *warnings_of(changes)]
        if adapter.peft_type not in OWN_CUT:
            lines.append(f"a size of {adapter.peft_type} is a LoRA of the same modules")
        return Audit(
            adapter, self._metric, len(uncut), changes.parameters, uncut.score(), without.score(), tuple(sizes),
            within, sure, self._data.train is not None, changes.shares(), tuple(lines), self._form,
            _helps(uncut, without, within), self._count_seen(adapter.run),
        )  # fmt: skip

    def _count_seen(self, run: RunSpec | None) -> int:
        """Counts the rows that the adapter's own run trained on, if that and its data are here."""
        with suppress(ValueError, OSError):
            if run is not None and (run.data.root or run.task.startswith(("toy/", "custom/"))):
                task = run.task_row
                taught = {*read_texts(task, splits_of(run, task).train)}
                return count_seen(task, self._splits.reported.values(), taught)
        return 0

    def _read_changes(self) -> tuple[Any, Changes]:
        """Loads the model and reads its adapter's changes. Raises ValueError if these are not all that the adapter does."""
        folder, task, pad = self._folder, self._task, self._tokenizer.pad_token_id
        model, stored = folder.load(task.kind, task.labels, pad), folder.moves_base
        changes = changes_of(model, folder.load_base(task.kind, task.labels, pad) if stored else None)
        if (cut := folder.cut) is not None:  # of low-rank matrices the model has the products
            changes = replace(changes, parameters=min(cut[1], changes.parameters))
        if folder.peft_type == CRAFT:
            self._cut_model = model
            return model, changes
        self._whole = write_lora(folder, changes, self._scratch / "whole")
        self._cut_model = self._whole.load(task.kind, task.labels, pad)
        check_change(model, self._cut_model)
        if not stored:
            return model, changes
        self._folder = self._whole
        return self._cut_model, changes

    def _record(self, changes: Changes) -> Path:
        """Writes the adapter that is cut as one of this package, with the record of a run; returns its folder."""
        to = self._scratch / "imported"
        to.mkdir()
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            shutil.copy(self._whole.path / name, to)
        plain: dict[str, Any] = {} if self._spec.row.cutting else {"method": "lora", "parameters": {}}
        run = self._spec.model_copy(update=plain | {"cut_from": None})
        counts = {"trainable_parameters": changes.parameters, "head_parameters": 0, "total_parameters": 0, "adapter_bytes": 0}
        facts: dict[str, Any] = {"spec": run.model_dump(mode="json"), "kind": self._task.kind, "labels": [*self._task.labels]}
        write_record(to, facts | {"counts": counts, "metrics": {}, "notes": [], "facts": {}})
        return to

    def _choose_form(self, model: Any) -> None:
        """Reads pairs as they stand, or in a template: in which form the adapter finds the first answers likelier.

        A folder does not say in which form its adapter was trained, and in another one its scores are those of noise.
        """
        data = self._data
        answers: dict[bool, Answers] = {}
        self._left += 2
        for plain in (False, True):
            self._read(replace(data, plain=plain, metric="likelihood", train=None), FORM_ROWS)
            answers[plain] = self._answer(model, "plain" if plain else "template")
        plain = answers[True].sides[0].sum() > answers[False].sides[0].sum()
        template = "the chat template" if self._tokenizer.chat_template else "Alpaca's form"
        forms = {False: f"in {template}", True: "as they stand"}
        self._tell(
            f"pairs are read {forms[plain]}: likelihood {answers[plain].score():.1f}, and {answers[not plain].score():.1f} "
            f"{forms[not plain]} ({len(answers[plain])} rows; --{'chat' if plain else 'plain'} takes the latter)"
        )
        self._form = forms[bool(plain)]
        self._read(replace(data, plain=bool(plain)))

    def _size(self, imported: Path, budget: int, uncut: Answers) -> Size | None:
        try:
            smaller = cuts.cut(imported, f"{BUDGET}{budget}", RECOVERY)
        except cuts.TooSmall:
            return None
        model, to = self._cut_model, self._scratch / str(budget) / "adapter"
        with cuts.attached(model, smaller.tensors, smaller.config):
            if self._data.train is not None:
                cuts.recover(model, smaller.run, smaller.tensors, self._task, self._scorer(model), Meter())
            answers = self._answer(model, str(budget))
        write_adapter(self._whole, smaller.tensors, smaller.config, to)
        gap, parameters = compare_answers(uncut, answers), smaller.record["counts"]["trainable_parameters"]
        self._tell(f"{parameters:,} parameters: {answers.score():.1f} ({gap.mean:+.1f}, {gap.low:+.1f} to {gap.high:+.1f})")
        return Size(parameters, smaller.ranks, answers.score(), gap, to)

    def _scorer(self, model: Any) -> Scorer:
        # A new one each time: a scorer gives its last outputs again while the weights are the same, switched off or not.
        return make_scorer(self._spec, self._task, self._splits, self._tokenizer, model)

    def _follow(self, _work: str, done: int, total: int) -> None:
        """Tells how far a scoring is that takes long."""
        if done < total and time.monotonic() - self._told > TOLD_SECONDS:
            self._told = time.monotonic()
            self._tell(f"scoring {self._scored} of {self._scored + self._left}: {100 * done // total} %")

    def _answer(self, model: Any, name: str) -> Answers:
        self._scored, self._left = self._scored + 1, self._left - 1
        place = self._scratch / f"answers-{name}"
        place.mkdir()
        with watching(self._follow):
            self._scorer(model).reported(model, place, lambda scores: None)
        if self._task.kind != "generation":
            outputs = load_file(place / PREDICTIONS_FILE)
            sides = decide(outputs["outputs"].numpy(), self._task.kind), outputs["labels"].numpy()
            return Answers(self._metric, sides_of(self._task, self._metric, *sides))
        (file,) = (place / PREDICTIONS_FOLDER).glob("reported.jsonl*")
        lines = read_file(file)
        return Answers(self._metric, tuple(read_column(lines, name) for name in METRICS[self._metric].reads))

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
            named, order = shlex.join(self._task.labels), shlex.join(self._task.labels[column] for column in columns)
            as_named, best = (100 * right / table.sum() for right in (np.trace(table), table[rows, columns].sum()))
            raise ValueError(
                f"the head seems to have its classes in another order than {named}, by which it is right "
                f"in {as_named:.0f} %: with `{order}` it is in {best:.0f} %. Give the order of its training as --labels"
            )


def _describe_adapter(folder: Folder, changes: Changes) -> str:
    """Returns its method, ranks, modules, size and base in words."""
    ranks = {len(s) for s in changes.values.values()}
    modules = sorted({name.rpartition(".")[2] for name in changes.values})
    names = f"{', '.join(modules[:6])}{', ...' if modules[6:] else ''}"
    rank = f"{min(ranks)}" if len(ranks) == 1 else f"{min(ranks)} to {max(ranks)}"
    size = format_bytes((folder.path / WEIGHTS_FILE).stat().st_size)
    return (
        f"{folder.peft_type} with {changes.parameters:,} parameters in {len(changes.values)} modules ({names}), {size}: "
        f"changes of rank {rank} of {folder.base}" + (f"; cut from the adapter of run {folder.cut[0]}" if folder.cut else "")
    )


def _helps(uncut: Answers, without: Answers, within: float) -> bool:
    """Returns whether the rows show that the adapter adds more than may be lost."""
    return compare_answers(without, uncut).low > within


def _doubts(uncut: Answers) -> list[str]:
    """Says so if these rows do not show that the adapter is better than always answering the most frequent class."""
    labels = uncut.sides[1]
    names, counts = np.unique(labels, return_counts=True)
    constant = Answers(uncut.metric, (np.full(len(labels), names[counts.argmax()]), labels))
    doubt = f"it is not shown to be above the most frequent class ({constant.score():.1f})"
    return [doubt] if compare_answers(constant, uncut).low <= 0 else []
