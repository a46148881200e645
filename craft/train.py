"""One run from what a person asks for to a scored adapter, and how to load it: `craft-sweeps train`.

The call is checked before torch is imported. Everything that a sweep file can say of one run can be said here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from craft.methods import find_method
from craft.methods.method import refuse_elsewhere
from craft.models.cached import MINILM
from craft.plain_yaml import YamlProblem, read_plain
from craft.results import Progress, RunFailed, RunResult
from craft.settings import DataSettings, MeasureSettings, TrainingSettings, WarmStart, shown_names, spellings
from craft.spec import RunSpec
from craft.tasks import find_task
from craft.trainer.checkpoint import find_newest_checkpoint
from craft.trainer.memory import OutOfMemory
from craft.words import nearest

USE = """
{steps} steps in {seconds:.1f} s. The adapter is in {folder}. To use it as a model of transformers:

  from craft import load_adapter
  model, tokenizer = load_adapter({folder!r})"""


class CallError(ValueError):
    """A mistake in the flags; the message is one sentence for the person who made it."""


@dataclass(frozen=True)
class Flags:
    """One run as a person asks for it.

    Attributes:
        data_root: a folder with glue/ and commonsense/ in it; without it the hub is asked.
        warm_start: the folder of the adapter that the run starts from.
        settings: parameters of the method and training settings by their names; None if not given.
        assignments: any other parameters, as `KEY=VALUE`.
    """

    task: str
    model: str = MINILM
    revision: str | None = None
    method: str = "craft"
    seed: int = 0
    protocol: str = "honest"
    data_root: str | None = None
    warm_start: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    assignments: Sequence[str] = ()


def run_spec(flags: Flags) -> RunSpec:
    """Returns the run that the flags describe."""
    try:
        method = find_method(flags.method)
    except ValueError as error:
        raise CallError(f"--method: {error}") from None
    run: dict[str, Any] = {name: getattr(flags, name) for name in ("model", "revision", "task", "protocol", "seed")}
    run |= {"method": method.name, "parameters": {}, "training": {}, "data": {}, "measure": {}}
    places: dict[str, tuple[str, ...]] = {name: ("training", field) for name, field in spellings(TrainingSettings).items()}
    places |= {name: ("parameters", field) for name, field in spellings(method.parameters).items()}
    short = [(f"--{key.replace('_', '-')}", key, value) for key, value in flags.settings.items() if value is not None]
    for flag, key, value in [*short, *map(assignment, flags.assignments)]:
        first, *rest = key.split(".")
        if first not in places and not (first in ("data", "measure") and rest):
            names = [*places, *(f"data.{name}" for name in DataSettings.model_fields)]
            names += [f"measure.{name}" for name in shown_names(MeasureSettings)]
            raise CallError(f"{flag}: unknown key {key!r}.{nearest(key, names)} Keys: {', '.join(names)}")
        *path, last = [*places.get(first, (first,)), *rest]
        block = run
        for part in path:
            block = block.setdefault(part, {})
            if not isinstance(block, dict):
                raise CallError(f"{flag}: {part} is set to a plain value already")
        block[last] = [int(rank) if rank.isdecimal() else rank for rank in value] if flag == "--ranks" else value
    if flags.data_root:
        run["data"]["root"] = str(Path(flags.data_root).expanduser().resolve())
    if flags.warm_start:
        run["warm_start"] = _warm_start(Path(flags.warm_start))
    try:
        return RunSpec.model_validate(run)
    except ValidationError as error:
        raise CallError("; ".join(_describe(mistake) for mistake in error.errors())) from None


def assignment(text: str) -> tuple[str, str, Any]:
    """Returns one `--set` as it is shown in messages, its key and its value."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise CallError(f"--set {text}: expected KEY=VALUE, such as --set batch_size=32")
    try:
        return f"--set {key.strip()}", key.strip(), read_plain(value, "--set", lines=False)[0]
    except YamlProblem as problem:
        raise CallError(f"--set {text}: the value cannot be read as YAML ({problem.message})") from None


def _warm_start(folder: Path) -> WarmStart:
    adapter = folder if (folder / "run.json").is_file() else folder / "adapter"
    if not (adapter / "run.json").is_file():
        raise CallError(f"--warm-start {folder}: no adapter of this project is there (no run.json)")
    return WarmStart(run=_read_spec(adapter).key, adapter=str(adapter.resolve()))


def _read_spec(adapter: Path) -> RunSpec:
    try:
        return RunSpec.model_validate(json.loads((adapter / "run.json").read_text(encoding="utf-8"))["spec"])
    except (ValueError, KeyError):
        raise CallError(f"{adapter / 'run.json'} cannot be read") from None


def _describe(mistake: Any) -> str:
    place = ".".join(str(part) for part in mistake["loc"])
    message = mistake["msg"].removeprefix("Value error, ")
    value = "" if isinstance(mistake.get("input"), dict) else f" (given: {mistake.get('input')!r})"
    return f"{place}: {message}{value}" if place else message


def train(flags: Flags, to: str | None = None, resume: bool = False, sizes: Sequence[int] = ()) -> int:
    """Trains what `flags` describe and returns the exit status.

    Args:
        to: where adapter and checkpoints go; runs/craft/TASK-KEY if not given.
        resume: continue from the newest whole checkpoint in that folder.
        sizes: numbers of parameters to cut the adapter to.
    """
    try:
        spec = run_spec(flags)
        folder = _choose_folder(to, spec)
        _check(spec, sizes)
        result = _train(spec, folder, resume, sizes)
    except CallError as error:
        _say(str(error))
        return 2
    except (RunFailed, OutOfMemory, OSError) as error:
        hint = ". Try a smaller --batch-size with --set gradient_accumulation" if isinstance(error, OutOfMemory) else ""
        _say(f"the run failed: {error}{hint}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted; the same call with --resume continues from the last evaluation")
        return 130
    _show(result)
    return 0


def _choose_folder(to: str | None, spec: RunSpec) -> Path:
    folder = Path(to or f"runs/craft/{spec.task.replace('/', '-')}-{spec.key}")
    if (folder / "adapter" / "run.json").is_file() and _read_spec(folder / "adapter") != spec:
        raise CallError(f"--to {folder}: it has another run's adapter; give a folder of its own")
    existing = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise CallError(f"--to {folder}: {existing} cannot be written")
    return folder


def _check(spec: RunSpec, sizes: Sequence[int]) -> None:
    """Refuses what cannot be trained here, and says what will be."""
    try:
        find_task(spec.task, spec.data)
        refuse_elsewhere(find_method(spec.method))
        from craft.models.gguf import gguf_notes
        from craft.scoring.choose import doubt_texts
        from craft.trainer.counting import check_sizes, planned_counts

        counts, notes = planned_counts(spec), [*gguf_notes(spec.model), *doubt_texts(spec)]
        check_sizes(spec, sizes)
    except ValueError as error:
        raise CallError(str(error)) from None
    counted = f"{counts.trainable_parameters:,} adapter parameters, {counts.head_parameters:,} in the head"
    _say(f"{spec.method} on {spec.model}, {spec.task}, seed {spec.seed}: {counted}, {counts.total_parameters:,} in all", *notes)


def _train(spec: RunSpec, folder: Path, resume: bool, sizes: Sequence[int]) -> RunResult:
    from craft.trainer.training import train_run

    checkpoint, steps = find_newest_checkpoint(folder) if resume else None, 0
    if checkpoint:
        _say(f"continuing from {checkpoint}")

    def on_step(step: int, total: int) -> None:
        nonlocal steps
        steps = step
        if sys.stderr.isatty():
            print(f"\rstep {step} of {total} ", end="", file=sys.stderr, flush=True)

    try:
        return train_run(spec, folder, report=_report, resume_from=checkpoint, on_step=on_step, cuts=sizes)
    except RunFailed as error:
        if isinstance(error.__cause__, ValueError) and not steps:
            raise CallError(str(error)) from None
        raise


def _say(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr)


def _report(progress: Progress) -> None:
    figures = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in progress.metrics.items())
    _say(f"\repoch {progress.epoch:.2f}  step {progress.step}/{progress.total_steps}  {figures}")


def _show(result: RunResult) -> None:
    for name, value in (result.metrics | result.counts.known()).items():
        digits = 4 if name == "search_loss" or value < 1 else 2
        print(f"{name:<24}{value:,.{digits}f}".removesuffix(".00"))
    for cut in result.cuts:
        print(f"cut to {cut.counts.trainable_parameters:,} parameters: score {cut.metrics['score']:.2f}, {cut.adapter}")
    for note in result.notes:
        print(f"note: {note}")
    print(USE.format(folder=str(result.adapter), steps=result.steps, seconds=result.seconds))
