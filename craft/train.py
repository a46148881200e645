"""`python -m craft.train`: one run from the command line, from its flags to a scored adapter and how to load it.

Flags are checked before torch is imported, so that a mistake costs a second. Everything a sweep file can say of one run can be
said here: the common parameters have flags, all others go through `--set key=value`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, ValidationError

from craft.methods import METHODS, find_method
from craft.methods.method import refuse_elsewhere
from craft.plain_yaml import YamlProblem, read_plain
from craft.settings import DataSettings, TrainingSettings, WarmStart
from craft.spec import RunSpec
from craft.tasks import find_task
from craft.words import nearest

if TYPE_CHECKING:
    from rich.console import Console

    from craft.results import Progress, RunResult

EPILOG = """\
examples:
  python -m craft.train --task toy/sentiment --ranks all 32 32
  python -m craft.train --task glue/mrpc --data-root DATA --ranks all 64 64 --projections q k v o --learning-rate 3e-3
  python -m craft.train --task glue/rte --method lora --rank 8 --set alpha=16 --set head_learning_rate=1e-3
  python -m craft.train --task commonsense --model MODEL --data-root DATA --set 'data.generation={score: likelihood}'
  python -m craft.train --task custom/tickets --set 'data.custom.tickets={train: tickets.csv, text: [body], label: queue}'

--set takes a parameter of the method, a training setting, or a path under data; the value is read as YAML.
exit status: 0 finished, 1 the run failed, 2 the call is wrong, 130 interrupted (the same call with --resume goes on)
"""


class CallError(ValueError):
    """A mistake in the flags; the message is one sentence for the person who made it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    arguments = _parser().parse_args(argv)
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    try:
        spec = run_spec(arguments)
        directory = Path(arguments.to) if arguments.to else Path("runs") / "craft" / f"{spec.task.replace('/', '-')}-{spec.key}"
        _check_directory(directory, spec)
        return _run(spec, directory, arguments.resume, console)
    except CallError as error:
        console.print(f"craft.train: {error}", markup=False, soft_wrap=True)
        return 2


def run_spec(arguments: argparse.Namespace) -> RunSpec:
    """The run that the flags describe. Raises CallError for the first thing that is wrong with them."""
    try:
        method = find_method(arguments.method)
    except ValueError as error:
        raise CallError(f"--method: {error}") from None
    known = _names(method.parameters)
    training_fields = TrainingSettings.model_fields
    parameters: dict[str, Any] = {}
    training: dict[str, Any] = {}
    data: dict[str, Any] = {}
    if arguments.data_root:
        data["root"] = str(Path(arguments.data_root).expanduser().resolve())
    for flag in ("ranks", "rank", "projections", "dropout"):
        if getattr(arguments, flag) is not None:
            if flag not in known:
                raise CallError(f"--{flag}: the method {method.name} has no such parameter; it has: {', '.join(known)}")
            parameters[flag] = getattr(arguments, flag)
    for flag in ("learning_rate", "epochs", "batch_size"):
        if getattr(arguments, flag) is not None:
            training[flag] = getattr(arguments, flag)
    for text in arguments.set:
        key, value = _assignment(text)
        if key.startswith("data."):
            _put(data, key.split(".")[1:], value)
        elif key in known:
            parameters[key] = value
        elif key in training_fields:
            training[key] = value
        else:
            allowed = [*known, *training_fields, *(f"data.{name}" for name in DataSettings.model_fields)]
            raise CallError(f"--set {text}: unknown key {key!r}.{nearest(key, allowed)} Keys: {', '.join(allowed)}")
    warm_start = _warm_start(Path(arguments.warm_start)) if arguments.warm_start else None
    try:
        return RunSpec(
            model=arguments.model,
            revision=arguments.revision,
            task=arguments.task,
            method=method.name,
            parameters=parameters,
            training=training,
            data=data,
            protocol=arguments.protocol,
            seed=arguments.seed,
            warm_start=warm_start,
        )
    except ValidationError as error:
        raise CallError("; ".join(_sentence(one) for one in error.errors())) from None


def _warm_start(folder: Path) -> WarmStart:
    """The run whose adapter lies in `folder`, or in its `adapter`."""
    place = next((one for one in (folder, folder / "adapter") if (one / "run.json").is_file()), None)
    if place is None:
        raise CallError(f"--warm-start {folder}: no adapter of this project lies there (no run.json)")
    try:
        theirs = RunSpec.model_validate(json.loads((place / "run.json").read_text())["spec"])
    except (ValueError, KeyError):
        raise CallError(f"--warm-start {folder}: {place / 'run.json'} cannot be read") from None
    return WarmStart(run=theirs.key, adapter=str(place.resolve()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m craft.train",
        description="Train one adapter on one task, score it, and save it where PEFT can load it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", default="sentence-transformers/all-MiniLM-L6-v2", help="hub id or local folder (default: %(default)s)")
    add("--revision", help="the hub's revision of the model")
    add("--task", required=True, help="such as toy/sentiment, glue/mrpc, commonsense, custom/NAME")
    add("--method", default="craft", help=f"one of: {', '.join(METHODS)} (default: %(default)s)")
    add("--ranks", nargs=3, type=_rank, metavar=("R1", "R2", "R3"), help="CRAFT's ranks; all = every layer")
    add("--rank", type=int, help="the rank of methods that have one, such as lora")
    add("--projections", nargs="+", metavar="WORD", help="which weights: q k v o up gate down")
    add("--dropout", type=float, help="the method's own dropout")
    add("--learning-rate", type=float, help="the adapter's; the head's too unless --set head_learning_rate=...")
    add("--epochs", type=float)
    add("--batch-size", type=int)
    add("--seed", type=int, default=0)
    add("--protocol", choices=("honest", "customary"), default="honest", help="what selection may see (default: honest)")
    add("--data-root", metavar="DIR", help="folder with glue/ and commonsense/ in it; without it the hub is asked")
    add("--warm-start", metavar="DIR", help="start from the adapter in this folder; the task head of another task is left out")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other parameter; may be repeated")
    add("--to", metavar="DIR", help="where adapter and checkpoints go (default: runs/craft/TASK-KEY)")
    add("--resume", action="store_true", help="go on from the newest whole checkpoint in that folder")
    return parser


def _rank(text: str) -> int | str:
    return text if text == "all" else int(text)


def _names(model: type[Any]) -> list[str]:
    """A pydantic model's field names, other accepted spellings included."""
    names = []
    for name, field in model.model_fields.items():
        names.append(name)
        if isinstance(field.validation_alias, AliasChoices):
            names += [choice for choice in field.validation_alias.choices if isinstance(choice, str) and choice != name]
    return names


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise CallError(f"--set {text}: expected KEY=VALUE, such as --set batch_size=32")
    try:
        return key.strip(), read_plain(value, "--set", lines=False)[0]
    except YamlProblem as problem:
        raise CallError(f"--set {text}: the value cannot be read as YAML ({problem.message})") from None


def _put(data: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise CallError(f"--set data.{'.'.join(path)}: {part} is set to a plain value already")
    data[path[-1]] = value


def _sentence(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    given = error.get("input")
    shown = "" if isinstance(given, dict) else f" (given: {given!r})"
    return f"{where}: {message}{shown}" if where else message


def _check_directory(directory: Path, spec: RunSpec) -> None:
    """Refuses a folder that another run's adapter lies in, or that cannot be written."""
    other = directory / "adapter" / "run.json"
    if other.is_file():
        theirs = json.loads(other.read_text()).get("spec")
        if theirs != spec.model_dump(mode="json"):
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

    from craft.results import RunFailed
    from craft.trainer.checkpoint import newest_valid
    from craft.trainer.counting import planned_counts
    from craft.trainer.process import OutOfMemory
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
    checkpoint = newest_valid(directory) if resume else None
    if checkpoint:
        console.print(f"going on from {checkpoint}")
    try:
        with _Bar(console) as bar:
            result = train_run(
                spec, directory, report=bar.report, resume_from=checkpoint, on_step=bar.on_step, on_score=bar.on_score
            )
    except RunFailed as error:
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
        score, loss = progress.metrics["search_score"], progress.metrics["search_loss"]
        place = f"epoch {progress.epoch:.2f}  step {progress.step}/{progress.total_steps}"
        tests = [f"{name.removeprefix('accuracy_')} {value:.1f}" for name, value in progress.metrics.items() if _of_test(name)]
        line = f"scored: {', '.join(tests)}" if tests else f"{place}  search score {score:.1f}  loss {loss:.4f}"
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
