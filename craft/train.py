"""`python -m craft.train`: one run from the command line, from its flags to a scored adapter and how to load it.

`craft.train_flags` makes the run from the flags; this module trains it and shows its progress and its result.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from craft.methods import find_method
from craft.methods.method import refuse_elsewhere
from craft.spec import RunSpec
from craft.tasks import find_task
from craft.train_flags import CallError, parser, run_spec
from craft.words import be_printable

if TYPE_CHECKING:
    from rich.console import Console

    from craft.results import Progress, RunResult


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    be_printable()
    arguments = parser().parse_args(argv)
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    try:
        spec = _as_begun(arguments) if arguments.resume else run_spec(arguments)
        directory = _directory(arguments, spec)
        _check_directory(directory, spec)
        return _run(spec, directory, arguments.resume, console)
    except CallError as error:
        console.print(f"craft.train: {error}", markup=False, soft_wrap=True)
        return 2


def _directory(arguments: argparse.Namespace, spec: RunSpec) -> Path:
    return Path(arguments.to) if arguments.to else Path("runs") / "craft" / f"{spec.task.replace('/', '-')}-{spec.key}"


def _as_begun(arguments: argparse.Namespace) -> RunSpec:
    """The run of the flags; if the flags mean another run to an earlier version, and that has a checkpoint here, that run."""
    older = run_spec(arguments, older=True)
    states = sorted(_directory(arguments, older).glob("checkpoint-*/*.json"))
    specs = [
        json.loads(file.read_text(encoding="utf-8")).get("spec") for file in states if file.name in ("state.json", "run.json")
    ]
    began = any(spec and RunSpec.recorded(spec).key == older.key for spec in specs)
    return older if began else run_spec(arguments)


def _check_directory(directory: Path, spec: RunSpec) -> None:
    """Refuses a folder that another run's adapter lies in, or that cannot be written."""
    other = directory / "adapter" / "run.json"
    if other.is_file():
        theirs = json.loads(other.read_text(encoding="utf-8")).get("spec")
        if theirs is None or RunSpec.recorded(theirs) != spec:
            raise CallError(f"--to {directory}: another run's adapter lies there; give a folder of its own")
    existing = next(path for path in (directory, *directory.resolve().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise CallError(f"--to {directory}: {existing} cannot be written")


def _run(spec: RunSpec, directory: Path, resume: bool, console: Console) -> int:
    try:
        task = find_task(spec.task, spec.data)
        refuse_elsewhere(find_method(spec.method))
    except ValueError as error:
        raise CallError(str(error)) from None

    from craft.models.gguf import gguf_notes
    from craft.results import RunFailed
    from craft.trainer.checkpoint import newest_valid
    from craft.trainer.counting import planned_counts
    from craft.trainer.memory import OutOfMemory
    from craft.trainer.training import train_run

    try:
        counts = planned_counts(spec)
    except ValueError as error:
        raise CallError(str(error)) from None
    console.print(
        f"{spec.method} on {spec.model}, {spec.task}, seed {spec.seed}: {counts.trainable_parameters:,} adapter parameters, "
        f"{counts.head_parameters:,} in the head, {counts.total_parameters:,} in all",
        soft_wrap=True,
    )
    for note in gguf_notes(spec.model):
        console.print(note, soft_wrap=True)
    checkpoint = newest_valid(directory) if resume else None
    if checkpoint:
        console.print(f"going on from {checkpoint}")
    try:
        with _Bar(console) as bar:
            result = train_run(
                spec, directory, report=bar.report, resume_from=checkpoint, on_step=bar.on_step, on_score=bar.on_score
            )
    except (RunFailed, OSError) as error:
        if isinstance(error.__cause__, ValueError) and not bar.stepped:
            raise CallError(str(error)) from None
        console.print(f"craft.train: the run failed: {error}", markup=False, soft_wrap=True)
        return 1
    except OutOfMemory as error:
        console.print(f"craft.train: {error}. Try a smaller --batch-size with --set gradient_accumulation", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("craft.train: interrupted; the same call with --resume goes on from the last evaluation", soft_wrap=True)
        return 130
    _show(result, directory, task.kind)
    return 0


class _Bar:
    """Steps, rate and time left on a terminal; one line an evaluation anywhere."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.console, self.stepped = console, False
        columns = TextColumn("step"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
        self.live = RichProgress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.row = self.live.add_task("", total=None)

    def __enter__(self) -> _Bar:
        self.live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.live.stop()

    def on_step(self, step: int, total: int) -> None:
        self.stepped = True
        self.live.update(self.row, completed=step, total=total, description="")

    def on_score(self, what: str, done: int, total: int) -> None:
        self.live.update(self.row, description=f"scoring {what}: {done:,} of {total:,}")

    def report(self, progress: Progress) -> None:
        place = f"epoch {progress.epoch:.2f}  step {progress.step}/{progress.total_steps}"
        tests = [f"{name.removeprefix('accuracy_')} {value:.1f}" for name, value in progress.metrics.items() if _of_test(name)]
        line = f"scored: {', '.join(tests)}" if tests else place
        if not tests and "search_score" in progress.metrics:  # the largest of nested ranks may have had its steps
            line += f"  search score {progress.metrics['search_score']:.1f}  loss {progress.metrics['search_loss']:.4f}"
        if progress.slices:
            line += "  slices " + ", ".join(f"{metrics['search_score']:.1f}" for metrics in progress.slices.values())
        self.live.print(line) if self.console.is_terminal else self.console.print(line)


def _of_test(metric: str) -> bool:
    return metric.startswith("accuracy_")


def _show(result: RunResult, directory: Path, kind: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("score", f"{result.metrics['score']:.2f}", "reported split, weights of step " + str(result.best_step))
    for name, value in result.metrics.items():
        if name != "score":
            table.add_row(name, f"{value:.4f}" if name == "search_loss" else f"{value:.2f}", "")
    for name, value in result.counts.known().items():
        table.add_row(name, f"{value:,.4f}" if isinstance(value, float) and value < 100 else f"{value:,.0f}", "")
    for one in result.slices.values():
        size = f"slice of {one.counts.trainable_parameters:,} parameters"
        table.add_row(size, f"{one.metrics['score']:.2f}", f"score, weights of step {one.best_step}; {one.adapter}")
    for note in result.notes:
        table.add_row("note", note, "")
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"\n{result.steps} steps in {result.seconds:.1f} s. The adapter is in {result.adapter}. To use it:\n", soft_wrap=True
    )
    use = _USE_WORDS if kind == "generation" else _USE_HEAD
    console.print(use.format(folder=str(result.adapter)), markup=False, soft_wrap=True)
    if (directory / "predictions").is_dir():
        console.print(f"\nEvery prediction: {directory / 'predictions'}", soft_wrap=True)


_USE_HEAD = """\
  from craft import load_adapter
  model, tokenizer = load_adapter({folder!r})
  batch = tokenizer(["your text"], return_tensors="pt")
  outputs = model(**batch).logits
  print(outputs, model.config.id2label)"""
_USE_WORDS = """\
  from craft import load_adapter
  model, tokenizer = load_adapter({folder!r})
  batch = tokenizer(["your prompt"], return_tensors="pt")
  outputs = model.generate(**batch, num_beams=4, max_new_tokens=32, do_sample=False)
  print(tokenizer.batch_decode(outputs, skip_special_tokens=True))"""


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
