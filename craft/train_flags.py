"""The flags of `python -m craft.train`, and the run that they describe.

Flags are checked before torch is imported, so that a mistake costs a second. Everything a sweep file can say of one run can be
said here: the common parameters have flags, all others go through `--set key=value`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from craft.methods import METHODS, find_method
from craft.methods.from_peft.any_type import refuse_retired
from craft.methods.nested import checked_chain
from craft.plain_yaml import YamlProblem, read_plain
from craft.settings import DataSettings, MeasureSettings, TrainingSettings, WarmStart, shown_names, spellings, with_older
from craft.spec import RunSpec
from craft.words import nearest

EPILOG = """\
examples:
  python -m craft.train --task toy/sentiment --ranks all 32 32
  python -m craft.train --task glue/mrpc --data-root DATA --ranks all 64 64 --projections q k v o --learning-rate 3e-3
  python -m craft.train --task toy/sentiment --ranks all 16 16 --ranks all 32 32 --ranks all 64 64
  python -m craft.train --task glue/rte --method lora --rank 8 --set alpha=16 --set head_learning_rate=1e-3
  python -m craft.train --task toy/sentiment --method peft --set peft_type=LILY --set config.r=4 --projections q k v o
  python -m craft.train --task commonsense --model MODEL --data-root DATA --set 'data.generation={score: likelihood}'
  python -m craft.train --task custom/tickets --set 'data.custom.tickets={train: tickets.csv, text: [body], label: queue}'

--set takes a parameter of the method, a training setting, or a path under data or measure; the value is read as YAML.
exit status: 0 finished, 1 the run failed, 2 the call is wrong, 130 interrupted (the same call with --resume goes on)
"""


class CallError(ValueError):
    """A mistake in the flags; the message is one sentence for the person who made it."""


def run_spec(arguments: argparse.Namespace, older: bool = False) -> RunSpec:
    """The run that the flags describe.

    Args:
        older: as a version understood them that had none of the settings in `craft.settings.OLDER`.

    Raises:
        CallError: the first mistake in the flags.
    """
    try:
        method = find_method(arguments.method)
    except ValueError as error:
        raise CallError(f"--method: {error}") from None
    if wrong := refuse_retired(arguments.method):
        raise CallError(f"--method: {wrong}")
    known = spellings(method.parameters)
    training_names = spellings(TrainingSettings)
    parameters: dict[str, Any] = {}
    known_then: dict[str, dict[str, Any]] = with_older({}) if older else {}
    training: dict[str, Any] = {**known_then.get("training", {})}
    data: dict[str, Any] = {**known_then.get("data", {})}
    measure: dict[str, Any] = {}
    if arguments.data_root:
        data["root"] = str(Path(arguments.data_root).expanduser().resolve())
    for flag in ("ranks", "rank", "projections", "dropout"):
        if getattr(arguments, flag) is not None:
            if flag not in known:
                raise CallError(f"--{flag}: the method {method.name} has no such parameter; it has: {', '.join(known)}")
            parameters[flag] = getattr(arguments, flag)
    if "ranks" in parameters:
        parameters |= _nested(parameters["ranks"])
    for flag in ("learning_rate", "epochs", "batch_size", "precision"):
        if getattr(arguments, flag) is not None:
            training[flag] = getattr(arguments, flag)
    for text in arguments.set:
        key, value = _assignment(text)
        if key.startswith("data."):
            _put(data, key.split(".")[1:], value)
        elif key.startswith("measure."):
            _put(measure, key.split(".")[1:], value, "measure")
        elif key.startswith("config.") and "config" in known:
            parameters["config"] = {**parameters.get("config", {}), key.removeprefix("config."): value}
        elif key in known:
            parameters[key] = value
        elif key in training_names:
            training[key] = value
        else:
            allowed = [*known, *shown_names(TrainingSettings), *(f"data.{name}" for name in DataSettings.model_fields)]
            allowed += [f"measure.{name}" for name in shown_names(MeasureSettings)]
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
            measure=measure,
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
        theirs = RunSpec.recorded(json.loads((place / "run.json").read_text(encoding="utf-8"))["spec"])
    except (ValueError, KeyError):
        raise CallError(f"--warm-start {folder}: {place / 'run.json'} cannot be read") from None
    return WarmStart(run=theirs.key, adapter=str(place.resolve()))


def parser() -> argparse.ArgumentParser:
    """The parser of all flags."""
    made = argparse.ArgumentParser(
        prog="python -m craft.train",
        description="Train one adapter on one task, score it, and save it where PEFT can load it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add(
        "--model",
        default="sentence-transformers/all-MiniLM-L6-v2",
        help="hub id, local folder or FOLDER/FILE.gguf (default: %(default)s)",
    )
    add("--revision", help="the hub's revision of the model")
    add("--task", required=True, help="such as toy/sentiment, glue/mrpc, commonsense, custom/NAME")
    add("--method", default="craft", help=f"one of: {', '.join(METHODS)} (default: %(default)s)")
    add(
        "--ranks",
        nargs=3,
        type=_rank,
        action="append",
        metavar=("R1", "R2", "R3"),
        help="CRAFT's ranks; all = every layer. Given several times, they are trained together as slices of the largest",
    )
    add("--rank", type=int, help="the rank of methods that have one, such as lora")
    add("--projections", nargs="+", metavar="WORD", help="which weights: q k v o up gate down")
    add("--dropout", type=float, help="the method's own dropout")
    add("--learning-rate", type=float, help="the adapter's; the head's is --set head_learning_rate=... (1e-3)")
    add("--epochs", type=float)
    add("--batch-size", type=int)
    add("--precision", metavar="NAME", help="float32 (the default), bf16-mixed or bfloat16")
    add("--seed", type=int, default=0)
    add("--protocol", choices=("honest", "customary"), default="honest", help="what selection may see (default: honest)")
    add("--data-root", metavar="DIR", help="folder with glue/ and commonsense/ in it; without it the hub is asked")
    add("--warm-start", metavar="DIR", help="start from the adapter in this folder; the task head of another task is left out")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other parameter; may be repeated")
    add("--to", metavar="DIR", help="where adapter and checkpoints go (default: runs/craft/TASK-KEY)")
    add("--resume", action="store_true", help="go on from the newest whole checkpoint in that folder")
    return made


def _nested(given: list[list[Any]]) -> dict[str, Any]:
    """One triple as `ranks`; several as nested ones, which the run of the largest trains."""
    if len(given) == 1:
        return {"ranks": given[0]}
    try:
        triples = checked_chain([(r1, r2, r3) for r1, r2, r3 in given])
    except ValueError as error:
        raise CallError(f"--ranks: {error}") from None
    return {"ranks": triples[-1], "nested": triples}


def _rank(text: str) -> int | str:
    return text if text == "all" else int(text)


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise CallError(f"--set {text}: expected KEY=VALUE, such as --set batch_size=32")
    try:
        return key.strip(), read_plain(value, "--set", lines=False)[0]
    except YamlProblem as problem:
        raise CallError(f"--set {text}: the value cannot be read as YAML ({problem.message})") from None


def _put(data: dict[str, Any], path: list[str], value: Any, section: str = "data") -> None:
    for part in path[:-1]:
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise CallError(f"--set {section}.{'.'.join(path)}: {part} is set to a plain value already")
    data[path[-1]] = value


def _sentence(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    given = error.get("input")
    shown = "" if isinstance(given, dict) else f" (given: {given!r})"
    return f"{where}: {message}{shown}" if where else message
