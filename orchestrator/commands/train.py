"""Commands about one run and one model, without a sweep: `train`, `energy`, `cache`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from craft.models.cached import MINILM


def train(
    task: Annotated[str, typer.Option(help="Such as toy/sentiment, glue/mrpc, commonsense, custom/NAME.")],
    model: Annotated[str, typer.Option(help="Hub id, local folder or FOLDER/FILE.gguf.")] = MINILM,
    revision: Annotated[str | None, typer.Option(help="The hub's revision of the model.")] = None,
    method: Annotated[str, typer.Option(help="Such as craft, lora, dora, head; docs/methods.md has them all.")] = "craft",
    ranks: Annotated[
        tuple[str, str, str] | None, typer.Option(metavar="R1 R2 R3", help="CRAFT's ranks; all = every layer.")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="The rank of methods that have one, such as lora.")] = None,
    projections: Annotated[str | None, typer.Option(metavar="'WORD ...'", help="Which weights: q k v o up gate down.")] = None,
    dropout: Annotated[float | None, typer.Option(help="The method's own dropout.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="The adapter's; the head's is --set head_learning_rate=... (1e-3).")
    ] = None,
    epochs: Annotated[float | None, typer.Option()] = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="NAME", help="float32 (the default), bf16-mixed or bfloat16.")
    ] = None,
    seed: Annotated[int, typer.Option()] = 0,
    protocol: Annotated[str, typer.Option(help="What selection may see: honest or customary.")] = "honest",
    data_root: Annotated[
        str | None, typer.Option(metavar="DIR", help="A folder with glue/ and commonsense/ in it; without it the hub is asked.")
    ] = None,
    warm_start: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Start from the adapter in this folder; the task head of another task is left out."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other parameter, see below. Repeatable.")
    ] = None,
    sizes: Annotated[str, typer.Option(metavar="'N ...'", help="Numbers of parameters to cut the adapter to.")] = "",
    to: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where adapter and checkpoints go; runs/craft/TASK-KEY if not given.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest whole checkpoint in that folder.")] = False,
) -> int:
    """Train one adapter on one task, without a sweep.

    It is scored, and saved as PEFT loads it.

    --set takes a parameter of the method, a training setting, or a path under data or measure; the value is read as YAML.

    Exit status: 0 finished; 1 the run failed; 2 the call is wrong; 130 interrupted (the same call with --resume continues).
    """
    from craft.train import Flags
    from craft.train import train as train_one

    settings = {
        "ranks": ranks, "rank": rank, "projections": _words(projections) or None, "dropout": dropout,
        "learning_rate": learning_rate, "epochs": epochs, "batch_size": batch_size, "precision": precision,
    }  # fmt: skip
    flags = Flags(task, model, revision, method, seed, protocol, data_root, warm_start, settings, changes or ())
    return train_one(flags, to, resume, [_number(word) for word in _words(sizes)])


def energy(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, local folder or FOLDER/FILE.gguf.")],
    projections: Annotated[str, typer.Option(metavar="'WORD ...'")] = "q v",
    ranks: Annotated[
        list[str] | None, typer.Option(metavar="R1,R2,R3", help="Repeatable; all = full. Usual ranks if not given.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where to decompose, such as cuda; the processor if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON instead of a table.")] = False,
) -> None:
    """Show how much of a model's weights CRAFT's ranks keep.

    The table has the share of the squared norm, by rank."""
    from craft.tucker import print_report

    print_report(model, _words(projections), ranks or (), device, as_json)


def cache(
    clear: Annotated[
        str | None, typer.Option(metavar="KEY|all", help="Remove the files whose keys begin so, or all of them.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--dir", metavar="DIR", help="Another cache folder.")] = None,
) -> None:
    """List or remove what is stored for later runs.

    Decompositions of weights and fitted task heads, the least recently used first.

    The folder is CRAFT_CACHE_DIR (else ~/.cache/craft), its bound CRAFT_CACHE_MAX_BYTES (else 20GB). What is removed is made
    again when it is needed.
    """
    from craft.store import clear_store, list_store

    list_store(folder) if clear is None else clear_store(folder, "" if clear == "all" else clear)


def _words(text: str | None) -> list[str]:
    return (text or "").replace(",", " ").split()


def _number(word: str) -> int:
    if not word.isdecimal():
        raise ValueError(f"--sizes: {word!r} is no number of parameters; write --sizes '2000 4000'")
    return int(word)
