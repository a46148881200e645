"""Sweeps from Python: `from orchestrator import plan, run, open_sweep, judge`.

    plan(sweep)        -> SweepPlan     what would run, and what it costs
    run(sweep)         -> Result        runs what is left of it, with progress, in a script or a notebook
    open_sweep(name)   -> Result        a sweep that has run, or runs
    judge(frame)       -> Judgement     a table of trainings of anybody

A sweep is the path of a sweep file, the text of one, or a dict of the same keys; changes of its values are texts
`key.path=value`. Other arguments are the options of the commands of these names. Nothing here keeps a second memory: a `Result`
reads the folder `runs/NAME` or the tracking store.
"""

from __future__ import annotations

import html
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from craft.disk import replacing
from orchestrator.commands.start import plan_sweep, run_file
from orchestrator.record.folder import SweepFolder
from orchestrator.record.options import Options
from orchestrator.record.resume import check_resume
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from orchestrator.adapters.taking import Form
    from orchestrator.plan.gpu_costs import GpuCost
    from orchestrator.plan.plan import Plan
    from orchestrator.record.state import State
    from orchestrator.results.answer import Answer
    from orchestrator.review.comparing import CompareReport
    from orchestrator.review.past_sweep import PastSweep
    from orchestrator.review.pick import Pick

SweepLike = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep would run. Printing it shows the table of `craft-sweeps plan`."""

    plan: Plan

    @cached_property
    def configurations(self) -> pd.DataFrame:
        """A row for each configuration: id, label, method, counts of parameters, bytes, parameters of the method."""
        import pandas as pd

        rows = [
            {"configuration": row.id, "label": row.label, "method": row.method, **row.known, **row.parameters}
            for row in self.plan.configurations
        ]
        return pd.DataFrame(rows)

    @property
    def dropped(self) -> dict[str, str]:
        """The configurations that a constraint leaves out, by label, with the reason."""
        return {drop.configuration.label: drop.reason for drop in self.plan.dropped}

    @property
    def trials(self) -> int:
        """The number of trainings, at most."""
        return self.plan.most_jobs

    def cost(self, gpu: str | None = None, gpus: int = 1, *, tflops: float | None = None, memory: str | None = None) -> GpuCost:
        """Estimates hours and memory on so many GPUs of a kind, or of `tflops` and `memory`; `.lines` has them in words.

        Raises:
            ValueError: the table has no such GPU.
        """
        from orchestrator.plan.gpu_costs import find_card, gpu_cost
        from orchestrator.review.prospect import sampled_lengths

        return gpu_cost(self.plan, find_card(gpu, tflops, memory), gpus, lengths=sampled_lengths(self.plan))

    def __str__(self) -> str:
        from orchestrator.plan.table import choices, gpu_lines, print_plan
        from orchestrator.plan.work import planned_steps

        console = Console(width=160, file=StringIO(), highlight=False, emoji=False)
        print_plan(self.plan, console, planned_steps(self.plan), [*choices(self.plan), *gpu_lines(self.plan, [])])
        return console.file.getvalue()  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        return str(self.configurations.to_html(index=False))


@dataclass(frozen=True)
class Choice:
    """A configuration of a sweep that was picked, with the reason."""

    record: PastSweep
    pick: Pick

    @property
    def label(self) -> str:
        from orchestrator.results.metrics import full_label

        return full_label(self.pick.summary)

    @property
    def reason(self) -> str:
        """The sentence that says why it is this one."""
        return self.pick.reason

    def save(self, to: str | Path, *, task: str | None = None, seed: int | None = None, form: Form = "adapter") -> list[Path]:
        """Writes its adapter with a model card, for each task, and returns the folders: `craft-sweeps take`. Raises ValueError
        if `to` is there already, or no trial has finished."""
        from orchestrator.adapters.taking import take_adapters

        if Path(to).exists():
            raise ValueError(f"{to} is there already; nothing is written over")
        with take_adapters(self.record, self.pick, Path(to), task=task, seed=seed, form=form) as adapters:
            pass
        return [adapter.folder for adapter in adapters]

    def load(self, task: str | None = None, seed: int | None = None) -> tuple[nn.Module, PreTrainedTokenizerBase]:
        """Loads the model with its adapter, in evaluation mode on the CPU, and its tokenizer.

        Raises:
            ValueError: the sweep has several tasks and `task` names none, or the adapter or its base cannot be loaded.
        """
        from craft import load_adapter

        tasks = self.record.sweep.task_names
        if task is None and len(tasks) > 1:
            raise ValueError(f"say which task: load(task=...), one of {', '.join(tasks)}")
        with tempfile.TemporaryDirectory() as folder:
            (adapter,) = self.save(Path(folder) / "adapter", task=task, seed=seed)
            return load_adapter(adapter)


@dataclass(frozen=True)
class Result:
    """A sweep that has run, or runs: what its record says at the moment when it was opened."""

    record: PastSweep

    @cached_property
    def front(self) -> pd.DataFrame:
        """Every configuration as in `front.csv`, by its cost; `on_front` marks the front."""
        from orchestrator.review.front_tables import ALWAYS, ranked, record_of

        objectives = self.record.sweep.objectives
        return _table((record_of(summary) for summary in ranked(self.record.summaries, objectives)), (*ALWAYS, *objectives))

    @cached_property
    def trials(self) -> pd.DataFrame:
        """Every finished trial, with columns `parameter.NAME`, `metric.NAME`, `count.NAME` and `fact.NAME`."""
        from orchestrator.review.trials_file import OF_RESULT, OF_TRIAL, cells_of

        finished = (cells_of(entry, result) for entry in self.record.state.requested if (result := entry.finished))
        return _table(finished, (*OF_TRIAL, *OF_RESULT, "metric.score"))

    @property
    def answer(self) -> Answer:
        """Which configuration is enough, or in `kind` why there is no answer, and what to run next; `answer.text` has it in
        words."""
        return self.record.answer

    @property
    def state(self) -> State:
        """All that the sweep's log says."""
        return self.record.state

    def pick(self, rule: str = "answer") -> Choice:
        """Picks a configuration by a rule (`answer`, `enough`, `knee`, `best`, `under:70000`), its label or its id. Raises
        ValueError if there is none; the message says what there is."""
        return Choice(self.record, self.record.pick(rule))

    def best(self, under: int | None = None) -> Choice:
        """Picks the best configuration by the search score, with at most `under` trainable parameters."""
        return self.pick("best" if under is None else f"under:{under}")

    def compare(self, other: Result, mine: str = "best", theirs: str = "best", metric: str = "score") -> CompareReport:
        """Compares a configuration with one of another sweep, or of this one, each picked by a rule, a label or an id;
        `.sentence` has the verdict in words. Raises ValueError if the scores mean different things, or share no task and
        seed."""
        from orchestrator.review.comparing import compare_sweeps

        return compare_sweeps(self.record, other.record, mine, theirs, metric)

    def _repr_html_(self) -> str:
        columns = ["label", "score", "score_low", "score_high", "trainable_parameters", "on_front"]
        table = self.front[[name for name in columns if name in self.front]].to_html(index=False)
        return f"{table}<pre>{html.escape(self.answer.text)}</pre>"


def plan(sweep: SweepLike, *changes: str, resume: bool = False) -> SweepPlan:
    """Plans a sweep; nothing is trained. With `resume`, what earlier sessions of the sweep changed counts.

    Raises:
        SweepError: the sweep is wrong; one line for each mistake, with its place.

    Example:
        >>> plan("sweeps/ranks.yaml", "seeds=[0, 1]").configurations
    """
    with _file(sweep) as file:
        return SweepPlan(plan_sweep(Options(file, changes, resume=resume, edited=True), Console(quiet=True, emoji=False)))


def run(
    sweep: SweepLike,
    *changes: str,
    resume: bool = True,
    storage: str | None = None,
    tracking_uri: str | None = None,
    address: str | None = None,
    cpus: int | None = None,
    quiet: bool = False,
) -> Result:
    """Runs what is left of a sweep and returns its result; an interrupt leaves a sweep that the same call continues.

    A sweep that is a text or a dict is kept as `NAME.yaml` in `storage`, so that `craft-sweeps run` can continue it. Without
    `resume`, a sweep of this name that is there already is refused.

    Raises:
        ValueError: the sweep is refused, and nothing has been trained.

    Example:
        >>> result = run("sweeps/ranks.yaml")
        >>> result.best(under=10_000).load()
    """
    options = Options("", changes, None, storage, tracking_uri, address, cpus=cpus, edited=True)
    with _file(sweep, storage if storage and "://" not in storage else "runs", options.assignments) as file:
        place = SweepFolder(load_sweep(file, options.assignments).folder)
        begun = place.effective.exists()
        if begun and not resume:
            raise SweepError([f"{place.path} holds this sweep already: continue it by resume=True, or give another name"])
        options = replace(options, sweep=file, resume=begun, quiet=quiet)
        run_file(options, Console(quiet=quiet, highlight=False, emoji=False))
    return open_sweep(place.path)


def open_sweep(name: str | Path, tracking_uri: str | None = None, storage: str | None = None) -> Result:
    """Opens a sweep that has run, or runs; neither Ray nor MLflow is needed for one in a folder.

    Args:
        name: its folder, or its name in `storage` (runs/) or the tracking store.

    Raises:
        NoSuchSweep: there is none.

    Example:
        >>> open_sweep("runs/ranks").answer.text
    """
    from orchestrator.review.past_sweep import find_sweep

    return Result(find_sweep(str(name), tracking_uri, storage))


@dataclass(frozen=True)
class Judgement(Result):
    """A table of trainings, judged: a `Result` without adapters, with sentences on how columns were read and what they lack."""

    read: list[str]
    lacks: list[str]


def judge(frame: Any, *, within: float | None = None, **said: Any) -> Judgement:
    """Judges trainings, one in a row, as those of a sweep: `craft-sweeps judge`. Raises ValueError for what cannot be read.

    Args:
        frame: a DataFrame, a list of dicts, or the path of a file.
        said: what columns are, where the table does not say it: the options of `craft-sweeps judge` (`Call`).
    """
    from orchestrator.review.run_columns import Call
    from orchestrator.review.run_table import read_table, rows_of_frame

    rows = Path(frame) if isinstance(frame, str | Path) else rows_of_frame(frame)
    table = read_table(rows, Call(**said), within)
    return Judgement(table.record, table.read, table.lacks)


def _table(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> pd.DataFrame:
    import pandas as pd

    table = pd.DataFrame(list(rows))
    return table.reindex(columns=[*dict.fromkeys((*table.columns, *columns))])


@contextmanager
def _file(sweep: SweepLike, storage: str | None = None, changes: Sequence[str] = ()) -> Iterator[str]:
    """Gives the path of a sweep's file. A text or a dict becomes one: `NAME.yaml` in `storage`, or for the moment. Raises
    ValueError if that would replace the file of another sweep."""
    if isinstance(sweep, Path) or (isinstance(sweep, str) and "\n" not in sweep):
        yield str(sweep)
        return
    text = (
        sweep if isinstance(sweep, str) else yaml.safe_dump(json.loads(json.dumps(dict(sweep), default=str)), sort_keys=False)
    )
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "text.yaml"
        file.write_text(text, encoding="utf-8")
        if storage is not None:
            loaded = load_sweep(file, changes)
            check_resume(loaded.folder, loaded)
            file = Path(storage) / f"{loaded.name}.yaml"
            other = file.exists() and file.read_bytes() != text.encode()
            if other and not SweepFolder(loaded.folder).effective.exists():
                raise ValueError(f"{file} is no file of a sweep that has run: rename it, or give this sweep another name")
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as aside:
                aside.write_text(text, encoding="utf-8")
        yield str(file)
