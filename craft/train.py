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
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from craft.methods import METHODS, find_method
from craft.methods.method import refuse_elsewhere
from craft.plain_yaml import YamlProblem, read_plain
from craft.settings import DataSettings, MeasureSettings, TrainingSettings, WarmStart, shown_names, spellings
from craft.spec import RunSpec
from craft.tasks import find_task
from craft.words import be_printable, nearest

if TYPE_CHECKING:
    from craft.results import Progress, RunResult

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
{steps} steps in {seconds:.1f} s. The adapter is in {folder}. To use it:

  from craft import load_adapter
  model, tokenizer = load_adapter({folder!r})
  batch = tokenizer(["your text"], return_tensors="pt")
  {use}"""
USE_HEAD = "outputs = model(**batch).logits\n  print(outputs, model.config.id2label)"
USE_WORDS = (
    "outputs = model.generate(**batch, max_new_tokens=32)\n  print(tokenizer.batch_decode(outputs, skip_special_tokens=True))"
)
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
    description = "Train one adapter on one task, score it, and save it where PEFT can load it."
    raw = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(
        "craft.train", description=description, epilog=EPILOG, formatter_class=raw, allow_abbrev=False
    )
    add = made.add_argument
    model = "sentence-transformers/all-MiniLM-L6-v2"
    add("--model", default=model, help="hub id, local folder or FOLDER/FILE.gguf (default: %(default)s)")
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
    return made


def run_spec(arguments: argparse.Namespace) -> RunSpec:
    """The run that the flags describe."""
    try:
        method = find_method(arguments.method)
    except ValueError as error:
        raise CallError(f"--method: {error}") from None
    content: dict[str, Any] = {name: getattr(arguments, name) for name in ("model", "revision", "task", "protocol", "seed")}
    content |= {"method": method.name, "parameters": {}, "training": {}, "data": {}, "measure": {}}
    known = {name: ["training", field] for name, field in spellings(TrainingSettings).items()}
    known |= {name: ["parameters", field] for name, field in spellings(method.parameters).items()}
    keys = {flag: flag[2:].replace("-", "_") for flag in FLAGS}
    given = [(flag, key, value) for flag, key in keys.items() if (value := getattr(arguments, key)) is not None]
    for flag, key, value in [*given, *(assignment(text) for text in arguments.set)]:
        first, *rest = key.split(".")
        path = [first, *rest] if first in ("data", "measure") and rest else [*known.get(first, []), *rest]
        if first not in known and path == rest:
            names = [*known, *(f"data.{name}" for name in DataSettings.model_fields)]
            names += [f"measure.{name}" for name in shown_names(MeasureSettings)]
            raise CallError(f"{flag}: unknown key {key!r}.{nearest(key, names)} Keys: {', '.join(names)}")
        here = content
        for part in path[:-1]:
            here = here.setdefault(part, {})
            if not isinstance(here, dict):
                raise CallError(f"{flag}: {part} is set to a plain value already")
        here[path[-1]] = [int(rank) if rank.isdecimal() else rank for rank in value] if flag == "--ranks" else value
    if arguments.data_root:
        content["data"]["root"] = str(Path(arguments.data_root).expanduser().resolve())
    if arguments.warm_start:
        content["warm_start"] = _warm_start(Path(arguments.warm_start))
    try:
        return RunSpec.model_validate(content)
    except ValidationError as error:
        raise CallError("; ".join(_sentence(one) for one in error.errors())) from None


def assignment(text: str) -> tuple[str, str, Any]:
    """The words of one `--set`, its key and its value."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise CallError(f"--set {text}: expected KEY=VALUE, such as --set batch_size=32")
    try:
        return f"--set {key.strip()}", key.strip(), read_plain(value, "--set", lines=False)[0]
    except YamlProblem as problem:
        raise CallError(f"--set {text}: the value cannot be read as YAML ({problem.message})") from None


def _warm_start(folder: Path) -> WarmStart:
    place = next((one for one in (folder, folder / "adapter") if (one / "run.json").is_file()), None)
    if place is None:
        raise CallError(f"--warm-start {folder}: no adapter of this project lies there (no run.json)")
    return WarmStart(run=_recorded(place).key, adapter=str(place.resolve()))


def _recorded(adapter: Path) -> RunSpec:
    try:
        return RunSpec.model_validate(json.loads((adapter / "run.json").read_text(encoding="utf-8"))["spec"])
    except (ValueError, KeyError):
        raise CallError(f"{adapter / 'run.json'} cannot be read") from None


def _sentence(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    shown = "" if isinstance(error.get("input"), dict) else f" (given: {error.get('input')!r})"
    return f"{where}: {message}{shown}" if where else message


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    be_printable()
    arguments = parser().parse_args(argv)
    try:
        spec = run_spec(arguments)
        directory = Path(arguments.to or f"runs/craft/{spec.task.replace('/', '-')}-{spec.key}")
        if (directory / "adapter" / "run.json").is_file() and _recorded(directory / "adapter") != spec:
            raise CallError(f"--to {directory}: another run's adapter lies there; give a folder of its own")
        existing = next(path for path in (directory, *directory.resolve().parents) if path.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise CallError(f"--to {directory}: {existing} cannot be written")
        return _run(spec, directory, arguments.resume, arguments.sizes)
    except CallError as error:
        print(f"craft.train: {error}", file=sys.stderr)
        return 2


def _run(spec: RunSpec, directory: Path, resume: bool, sizes: Sequence[int]) -> int:
    try:
        task = find_task(spec.task, spec.data)
        refuse_elsewhere(find_method(spec.method))
        from craft.models.gguf import gguf_notes
        from craft.scoring.choose import doubt_texts
        from craft.trainer.counting import check_sizes, planned_counts

        counts, notes = planned_counts(spec), [*gguf_notes(spec.model), *doubt_texts(spec)]
        check_sizes(spec, sizes)
    except ValueError as error:
        raise CallError(str(error)) from None
    from craft.results import RunFailed
    from craft.trainer.checkpoint import newest_valid
    from craft.trainer.memory import OutOfMemory
    from craft.trainer.training import train_run

    counted = f"{counts.trainable_parameters:,} adapter parameters, {counts.head_parameters:,} in the head"
    _say(f"{spec.method} on {spec.model}, {spec.task}, seed {spec.seed}: {counted}, {counts.total_parameters:,} in all", *notes)
    checkpoint = newest_valid(directory) if resume else None
    if checkpoint:
        _say(f"continuing from {checkpoint}")
    steps = 0

    def on_step(step: int, total: int) -> None:
        nonlocal steps
        steps = step
        if sys.stderr.isatty():
            print(f"\rstep {step} of {total} ", end="", file=sys.stderr, flush=True)

    try:
        result = train_run(spec, directory, report=_report, resume_from=checkpoint, on_step=on_step, sizes=sizes)
    except (RunFailed, OSError) as error:
        if isinstance(error.__cause__, ValueError) and not steps:
            raise CallError(str(error)) from None
        _say(f"craft.train: the run failed: {error}")
        return 1
    except OutOfMemory as error:
        _say(f"craft.train: {error}. Try a smaller --batch-size with --set gradient_accumulation")
        return 1
    except KeyboardInterrupt:
        _say("craft.train: interrupted; the same call with --resume continues from the last evaluation")
        return 130
    _show(result, USE_WORDS if task.kind == "generation" else USE_HEAD)
    return 0


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _report(progress: Progress) -> None:
    figures = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in progress.metrics.items())
    _say(f"\repoch {progress.epoch:.2f}  step {progress.step}/{progress.total_steps}  {figures}")


def _show(result: RunResult, use: str) -> None:
    for name, value in (result.metrics | result.counts.known()).items():
        digits = 4 if name == "search_loss" or value < 1 else 2
        print(f"{name:<24}{value:,.{digits}f}".removesuffix(".00"))
    for one in result.sizes:
        print(f"cut to {one.counts['trainable_parameters']:,} parameters: score {one.metrics['score']:.2f}, {one.adapter}")
    for note in result.notes:
        print(f"note: {note}")
    print(USE.format(folder=str(result.adapter), steps=result.steps, seconds=result.seconds, use=use))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
