"""`python -m orchestrator.adapters SWEEP --pick knee --to DIR` writes an adapter of a sweep, with a model card.

    find_sweep --> pick a configuration --> a trial for each task --> its adapter, checked --> DIR [merged] --> [registry]

No sweep is needed to load the result: an adapter loads with torch, transformers, peft and `craft`, a merged model with plain
transformers. Exit status: 0 written; 1 the sweep has nothing of that kind (yet); 2 the call is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from craft.trainer.checkpoint import MANIFEST_FILE
from craft.words import redact
from orchestrator.command import answer, flags_for, refuse_full, slug
from orchestrator.record.tracking_uri import resolve_uri
from orchestrator.results.summary import Entry
from orchestrator.results.table import full_label
from orchestrator.review.merging import reads_pairs
from orchestrator.review.mistakes_page import MISTAKES_FILE, POINTER, mistakes_page
from orchestrator.review.model_card import CARD_FILE, Origin, loading, model_card, peft_type_of
from orchestrator.review.past_sweep import PastSweep, find_sweep
from orchestrator.review.pick import RULES, choose_seed, pick, titles
from orchestrator.sweepfile.mistakes import unknown

EXAMPLES = f"""\
what --pick takes:
{RULES}
All rules but the knee go by the search score, and so does the choice of a seed (unless --seed is given): the reported score of
the picked configuration stays honest. Under the customary protocol, where the search saw the reported split, the seed in the
middle is taken.

examples:
  python -m orchestrator.adapters ranks --pick knee --to adapters/knee
      the sweep in runs/ranks (or, if there is none, the one of that name in mlflow.db); each of several tasks gets a folder
  python -m orchestrator.adapters ranks --pick under:70000 --task toy/sentiment --to small
      one task's adapter
  python -m orchestrator.adapters runs/ranks --pick "CRAFT 64, q k v o" --seed 0 --to mine --merge
      a configuration you name, merged into a full model that plain transformers loads
  python -m orchestrator.adapters ranks --pick "LoRA r8, q v" --slice 4 --slice parameters:20000 --to cut
      cut by SVD: every module to rank 4, and the whole adapter to 20,000 parameters; nothing is trained, no data are needed
  python -m orchestrator.adapters glue --tracking-uri http://tracker:5000 --pick best --register sentiment
      from a shared store into its model registry, with the alias champion; serve it there with
      MLFLOW_TRACKING_URI=http://tracker:5000 mlflow models serve -m models:/sentiment@champion --env-manager local

exit status: 0 written; 1 the sweep has nothing of that kind; 2 the call is wrong
"""


@dataclass(frozen=True)
class Taken:
    """A trial whose adapter is taken home, the reasons, and the folder that gets it."""

    entry: Entry
    reasons: tuple[str, ...]
    folder: Path


def parser() -> argparse.ArgumentParser:
    """Returns the command line's flags."""
    about = "Take an adapter of a sweep home: a folder with a model card, a merged model, or a registered one."
    flags = flags_for("adapters", about, EXAMPLES)
    flags.add_argument("sweep", metavar="SWEEP", help="a sweep's name, or its folder runs/NAME")
    flags.add_argument("--pick", metavar="RULE|CONFIGURATION", required=True, help="which configuration; see below")
    flags.add_argument("--to", metavar="DIR", type=Path, help="where to write; made, and must be empty")
    flags.add_argument("--task", help="take this task's adapter only")
    flags.add_argument("--seed", type=int, metavar="N", help="the trial with this seed, instead of the best by search score")
    flags.add_argument("--merge", action="store_true", help="merged into the base: a full model, written in float32")
    flags.add_argument(
        "--base", metavar="FOLDER|ID", help="the place of the base model, if it is not found under its name in the sweep"
    )
    flags.add_argument(
        "--slice", metavar="SIZE", action="append", help="cut it to this size instead: parameters:N or a rank R; repeatable"
    )
    flags.add_argument("--register", metavar="NAME", help="also (or only) make it a version of this registered model")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    return answer(parser(), arguments, _main, "stopped; nothing is left half-written")


def _main(flags: argparse.Namespace, console: Console) -> None:
    if flags.slice:
        from orchestrator.slicing import cut_adapters

        cut_adapters(flags, console)
        return
    if flags.to is None and flags.register is None:
        raise ValueError("say where it goes: --to DIR, --register NAME, or both")
    if flags.to is not None:
        refuse_full(flags.to)
    record = find_sweep(flags.sweep, flags.tracking_uri, flags.storage)
    chosen = pick(flags.pick, record.summaries, record.sweep.objectives, record.sweep.enough)
    console.print(f"{full_label(chosen.summary)} ({chosen.summary.configuration}): {chosen.reason}")
    with tempfile.TemporaryDirectory(prefix="craft-adapter-") as scratch:
        aside = _aside(flags.to) if flags.to is not None else Path(scratch) / "written"
        try:
            taken = _choose(flags, record, chosen.summary.configuration, chosen.reason, aside)
            for number, adapter in enumerate(taken):
                console.print(f"{adapter.entry.task}: {adapter.reasons[-1]}")
                _write(record, adapter, Path(scratch) / f"fetched-{number}", flags.merge, flags.base)
            if flags.register is not None:
                _register(flags, record, taken, console)
            if flags.to is not None:
                flags.to.parent.mkdir(parents=True, exist_ok=True)
                aside.rename(flags.to)
                _tell(flags, taken, aside, console)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _choose(flags: argparse.Namespace, record: PastSweep, configuration: str, reason: str, to: Path) -> list[Taken]:
    """Returns the trials to take, one for each wanted task."""
    tasks = record.sweep.task_names
    if flags.task is not None and flags.task not in tasks:
        raise ValueError(f"--task: {unknown('task of this sweep', flags.task, tasks)}")
    wanted = [flags.task] if flags.task is not None else tasks
    folders = _folders(wanted, to)
    taken = []
    for task in wanted:
        entry, why = choose_seed(record.trials(configuration, task), flags.seed)
        taken.append(Taken(entry, (f"Picked: {reason}.", f"Taken: {why}."), folders[task]))
    return taken


def _write(record: PastSweep, taken: Taken, scratch: Path, merge: bool, base: str | None) -> None:
    """Writes one adapter, or merged model, with its model card to `taken.folder`."""
    from craft.trainer.adapter_folder import RUN_FILE

    adapter = record.adapter(taken.entry.key, scratch)
    run = json.loads((adapter / RUN_FILE).read_text(encoding="utf-8"))
    merged = None
    taken.folder.mkdir(parents=True)
    if merge:
        from orchestrator.review.merging import write_merged

        merged = write_merged(adapter, taken.folder, base)
    else:
        # The seal lists the files of the stored folder. The copy gets a model card too, so the seal is left out.
        shutil.copytree(adapter, taken.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST_FILE))
    summary = next(one for one in record.summaries if one.configuration == taken.entry.configuration)
    origin = Origin(record.name, summary, taken.entry, taken.reasons, record.answer.verdict if record.answer else "")
    card = model_card(origin, run, pair=reads_pairs(run), merged=merged, peft_type=peft_type_of(adapter))
    answers = record.predictions(taken.entry.key, scratch / "answers")
    if wrong := mistakes_page(f"{taken.entry.label}, seed {taken.entry.seed}", answers):
        (taken.folder / MISTAKES_FILE).write_text(wrong, encoding="utf-8")
    (taken.folder / CARD_FILE).write_text(card + (POINTER if wrong else ""), encoding="utf-8")


def _register(flags: argparse.Namespace, record: PastSweep, taken: Sequence[Taken], console: Console) -> None:
    """Makes each adapter a version of the registered model NAME; for several tasks, of NAME-TASK."""
    from craft.trainer.adapter_folder import RUN_FILE
    from orchestrator.record.registry import Candidate, find_trial, register
    from orchestrator.review.merging import RECORD_FILE

    uri = resolve_uri(flags.tracking_uri) if flags.tracking_uri else record.uri
    if uri is None:
        raise ValueError("the sweep's record keeps no passwords, so its tracking store is not known: give --tracking-uri")
    earned = titles(record.summaries, record.sweep.objectives, record.sweep.enough)
    for adapter in taken:
        run = json.loads((adapter.folder / (RECORD_FILE if flags.merge else RUN_FILE)).read_text(encoding="utf-8"))
        if run["kind"] == "generation":
            raise ValueError(
                f"{adapter.entry.task} is answered in words; only classification and regression can be served. Leave "
                "--register out"
            )
        name = flags.register if len(taken) == 1 else f"{flags.register}-{slug(adapter.entry.task)}"
        candidate = Candidate(
            adapter.folder,
            name,
            pair=reads_pairs(run),
            labels=run["labels"] if run["kind"] == "classification" else ["value"],
            aliases=[alias for alias, configuration in earned.items() if configuration == adapter.entry.configuration],
            tags=_tags(record, adapter, run),
        )
        registered = register(uri, find_trial(uri, record.name, adapter.entry.key), candidate)
        word = "registered as" if registered.new else "is registered already as"
        also = f", also called {', '.join(registered.aliases)}" if registered.aliases else ""
        console.print(f"{adapter.entry.task}: {word} version {registered.version} of {registered.name}{also}")
        for alias, version in registered.moved.items():
            console.print(f"  {alias} was version {version} before")
        handle = (
            f"{registered.name}@{registered.aliases[0]}" if registered.aliases else f"{registered.name}/{registered.version}"
        )
        console.print(f"  MLFLOW_TRACKING_URI={redact(uri)} mlflow models serve -m 'models:/{handle}' --env-manager local")


def _tags(record: PastSweep, taken: Taken, run: Mapping[str, Any]) -> dict[str, str]:
    entry = taken.entry
    tags = {"sweep": record.name, "configuration": entry.configuration, "label": entry.label, "key": entry.key}
    tags |= {"task": entry.task, "seed": str(entry.seed), "method": entry.method, "protocol": entry.protocol}
    tags |= {"model": run["spec"]["model"], "score": f"{run['metrics']['score']:.4f}", "picked": taken.reasons[0]}
    return {f"craft.{name}": str(value)[:4000] for name, value in tags.items()}


def _tell(flags: argparse.Namespace, taken: Sequence[Taken], aside: Path, console: Console) -> None:
    from craft.trainer.adapter_folder import RUN_FILE
    from orchestrator.review.merging import RECORD_FILE

    for adapter in taken:
        folder = flags.to / adapter.folder.relative_to(aside)
        console.print(f"{adapter.entry.task}: written to {folder} ({CARD_FILE} tells what it is); load it with")
        run = json.loads((folder / (RECORD_FILE if flags.merge else RUN_FILE)).read_text(encoding="utf-8"))
        for line in loading(run, pair=reads_pairs(run), merged=flags.merge, folder=str(folder)).splitlines():
            console.print(f"    {line}")


def _folders(tasks: Sequence[str], to: Path) -> dict[str, Path]:
    """Returns the folder of each task: `to` itself for one task, folders inside it for several. Numbers separate equal folder
    names."""
    if len(tasks) == 1:
        return {tasks[0]: to}
    folders: dict[str, Path] = {}
    for task in tasks:
        name, number = slug(task), 2
        while to / name in folders.values():
            name, number = f"{slug(task)}-{number}", number + 1
        folders[task] = to / name
    return folders


def _aside(to: Path) -> Path:
    return to.absolute().with_name(f".{to.absolute().name}.{os.getpid()}")


if __name__ == "__main__":
    sys.exit(main())
