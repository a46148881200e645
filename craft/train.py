"""`python -m craft.train`: one run from its flags to a scored adapter, and how to load it.

Flags are checked before torch is imported. Everything that a sweep file can say of one run can be said here: common settings
have flags, all others go through `--set key=value`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from craft.methods import METHODS, find_method
from craft.methods.method import refuse_elsewhere
from craft.models.cached import MINILM
from craft.plain_yaml import YamlProblem, read_plain
from craft.results import Progress, RunFailed, RunResult
from craft.settings import DataSettings, MeasureSettings, TrainingSettings, WarmStart, shown_names, spellings
from craft.spec import RunSpec
from craft.tasks import find_task
from craft.trainer.checkpoint import find_newest_checkpoint
from craft.trainer.memory import OutOfMemory
from craft.words import be_printable, nearest

EPILOG = """\
examples:
  python -m craft.train --task toy/sentiment --ranks all 32 32
  python -m craft.train --task toy/sentiment --ranks all 64 64 --sizes 2000 4000 8000
  python -m craft.train --task glue/rte --data-root DATA --method lora --rank 8 --set alpha=16 --set head_learning_rate=1e-3
  python -m craft.train --task toy/sentiment --method peft --set peft_type=LILY --set config.r=4 --projections q k v o
  python -m craft.train --task commonsense --model MODEL --data-root DATA --set 'data.generation={score: likelihood}'
  python -m craft.train --task custom/tickets --set 'data.custom.tickets={train: tickets.csv, text: [body], label: queue}'

--set takes a parameter of the method, a training setting, or a path under data or measure; the value is read as YAML.
exit status: 0 finished, 1 the run failed, 2 the call is wrong, 130 interrupted (the same call with --resume continues)
"""
USE = """
{steps} steps in {seconds:.1f} s. The adapter is in {folder}. To use it as a model of transformers:

  from craft import load_adapter
  model, tokenizer = load_adapter({folder!r})"""
FLAGS = {
    "--ranks": {"nargs": 3, "metavar": ("R1", "R2", "R3"), "help": "CRAFT's ranks; all = every layer"},
    "--rank": {"type": int, "help": "the rank of methods that have one, such as lora"},
    "--projections": {"nargs": "+", "metavar": "WORD", "help": "which weights: q k v o up gate down"},
    "--dropout": {"type": float, "help": "the method's own dropout"},
    "--learning-rate": {"type": float, "help": "the adapter's; the head's is --set head_learning_rate=... (1e-3)"},
    "--epochs": {"type": float},
    "--batch-size": {"type": int},
    "--precision": {"metavar": "NAME", "help": "float32 (the default), bf16-mixed or bfloat16"},
}
"""Flags that are short for `--set`."""


class CallError(ValueError):
    """A mistake in the flags; the message is one sentence for the person who made it."""


def parser() -> argparse.ArgumentParser:
    description, raw = (
        "Train one adapter on one task, score it, save it as PEFT loads it.",
        argparse.RawDescriptionHelpFormatter,
    )
    flags = argparse.ArgumentParser("craft.train", None, description, EPILOG, formatter_class=raw, allow_abbrev=False)
    add = flags.add_argument
    add("--model", default=MINILM, help="hub id, local folder or FOLDER/FILE.gguf (default: %(default)s)")
    add("--revision", help="the hub's revision of the model")
    add("--task", required=True, help="such as toy/sentiment, glue/mrpc, commonsense, custom/NAME")
    add("--method", default="craft", help=f"one of: {', '.join(METHODS)} (default: %(default)s)")
    for name, options in FLAGS.items():
        add(name, **options)  # type: ignore[arg-type]
    add("--seed", type=int, default=0)
    add("--protocol", choices=("honest", "customary"), default="honest", help="what selection may see (default: honest)")
    add("--data-root", metavar="DIR", help="folder with glue/ and commonsense/ in it; without it the hub is asked")
    add("--warm-start", metavar="DIR", help="start from the adapter in this folder; the task head of another task is left out")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other parameter; may be repeated")
    add("--sizes", nargs="+", type=int, default=[], metavar="N", help="numbers of parameters to cut the adapter to")
    add("--to", metavar="DIR", help="where adapter and checkpoints go (default: runs/craft/TASK-KEY)")
    add("--resume", action="store_true", help="continue from the newest whole checkpoint in that folder")
    return flags


def run_spec(arguments: argparse.Namespace) -> RunSpec:
    """Returns the run that the flags describe."""
    try:
        method = find_method(arguments.method)
    except ValueError as error:
        raise CallError(f"--method: {error}") from None
    run: dict[str, Any] = {name: getattr(arguments, name) for name in ("model", "revision", "task", "protocol", "seed")}
    run |= {"method": method.name, "parameters": {}, "training": {}, "data": {}, "measure": {}}
    places: dict[str, tuple[str, ...]] = {name: ("training", field) for name, field in spellings(TrainingSettings).items()}
    places |= {name: ("parameters", field) for name, field in spellings(method.parameters).items()}
    keys = {flag: flag[2:].replace("-", "_") for flag in FLAGS}
    short = [(flag, key, value) for flag, key in keys.items() if (value := getattr(arguments, key)) is not None]
    for flag, key, value in [*short, *map(assignment, arguments.set)]:
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
    if arguments.data_root:
        run["data"]["root"] = str(Path(arguments.data_root).expanduser().resolve())
    if arguments.warm_start:
        run["warm_start"] = _warm_start(Path(arguments.warm_start))
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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    be_printable()
    arguments = parser().parse_args(argv)
    try:
        spec = run_spec(arguments)
        folder = _choose_folder(arguments.to, spec)
        _check(spec, arguments.sizes)
        result = _train(spec, folder, arguments.resume, arguments.sizes)
    except CallError as error:
        _say(f"craft.train: {error}")
        return 2
    except (RunFailed, OutOfMemory, OSError) as error:
        hint = ". Try a smaller --batch-size with --set gradient_accumulation" if isinstance(error, OutOfMemory) else ""
        _say(f"craft.train: the run failed: {error}{hint}")
        return 1
    except KeyboardInterrupt:
        _say("craft.train: interrupted; the same call with --resume continues from the last evaluation")
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


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
