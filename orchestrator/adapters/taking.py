"""Takes adapters of a sweep home: a trial for each task, its adapter, checked, in a folder with a model card.

    pick a configuration --> a trial for each task --> its adapter, checked --> a folder [merged]

No sweep is needed to load the result: an adapter loads with torch, transformers, peft and `craft`, a merged model with plain
transformers. `cut_adapters` cuts all adapters of a configuration; nothing is trained and nothing is scored by that (`sizes` in
the sweep file, and `--resume`, does both).
"""

from __future__ import annotations

import math
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from craft.models.files import is_gguf
from craft.spec import BUDGET
from craft.trainer.checkpoint import MANIFEST_FILE
from craft.words import format_bytes
from orchestrator.adapters.merging import read_run, reads_pairs, write_as_lora, write_merged
from orchestrator.adapters.model_card import CARD_FILE, Taken, loading, peft_config, served_by, write_card
from orchestrator.plan.configuration import CUT
from orchestrator.record.resume import check_data
from orchestrator.results.metrics import SIZE
from orchestrator.results.report import Count, Number, Part, Report
from orchestrator.results.summary import Summary
from orchestrator.review.desired_runs import headline
from orchestrator.review.front_tables import describe_trials, full_label
from orchestrator.review.past_sweep import PastSweep
from orchestrator.review.pick import Pick, choose_seed, titles
from orchestrator.sweepfile.mistakes import NothingMeets, unknown
from orchestrator.sweepfile.space.blocks import size_labels
from orchestrator.tools.filling import filled
from orchestrator.tools.secrets import redact
from orchestrator.tracking.client import resolve_uri

Form = Literal["adapter", "lora", "merged"]


def choose_trials(record: PastSweep, chosen: Pick, to: Path, task: str | None = None, seed: int | None = None) -> list[Taken]:
    tasks = record.sweep.task_names
    if task is not None and task not in tasks:
        raise ValueError(f"--task: {unknown('task of this sweep', task, tasks)}")
    adapters = []
    for name, folder in folders_of([task] if task is not None else tasks).items():
        entry, why = choose_seed(record.trials(chosen.summary.configuration, name), seed)
        reasons = f"Picked: {chosen.reason}.", f"Taken: {why}."
        adapters.append(Taken(record.name, chosen.summary, entry, reasons, record.answer.verdict, to / folder))
    return adapters


@contextmanager
def take_adapters(
    record: PastSweep,
    chosen: Pick,
    to: Path,
    *,
    task: str | None = None,
    seed: int | None = None,
    form: Form = "adapter",
    base: str | None = None,
) -> Iterator[list[Taken]]:
    """Writes a configuration's adapters to a temporary folder, and moves them to `to` when the block ends without an error
    (`filled`). The list has the valid folders: the temporary ones in the block, those in `to` after it.

    Args:
        base: the place of the base model, if it is not the one in the sweep's file, which may have moved since the training.
    """
    with filled(to) as aside:
        with tempfile.TemporaryDirectory(prefix="craft-adapter-") as scratch:
            adapters = choose_trials(record, chosen, aside, task, seed)
            if base is None and form != "adapter":
                from craft.models.files import model_digest

                digest = model_digest(record.sweep.model, record.sweep.revision)
                check_data(record.sweep, [each.entry for each in adapters], {record.sweep.model: digest} if digest else {})
            for number, adapter in enumerate(adapters):
                place = Path(scratch) / str(number)
                adapters[number] = _write_adapter(record, adapter, place, form, base or record.sweep.model)
        yield adapters
    adapters[:] = [replace(adapter, folder=to / adapter.folder.relative_to(aside)) for adapter in adapters]


def _write_adapter(record: PastSweep, adapter: Taken, scratch: Path, form: Form, base: str) -> Taken:
    """Writes one adapter in its form with its model card to `taken.folder`; returns it with a sentence on what was written."""
    source, folder = record.adapter(adapter.entry.key, scratch), adapter.folder
    run, merged = read_run(source), None
    trained = f"{run['counts']['trainable_parameters']:,.0f} parameters, {_bytes(source)}"
    folder.mkdir(parents=True)
    if form == "merged":
        merged = write_merged(source, folder, base)
        written = f"a full model, {_numbers(folder)}; the adapter that is merged into it has {trained}"
    elif form == "lora":
        write_as_lora(source, folder, base)
        lora = f"a LoRA of rank {(peft_config(folder) or {})['r']} with the same change of weights, {_numbers(folder)}"
        written = f"{lora}; the {run['spec']['method']} adapter has {trained}"
    else:
        # The seal lists the files of the stored folder. The copy gets a model card too, so the seal is left out.
        shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST_FILE))
        written = f"the adapter as it was trained, {trained}"
    adapter = replace(adapter, reasons=(*adapter.reasons, f"Written: {written}."))
    write_card(adapter, run, merged, record.predictions(adapter.entry.key, scratch, source))
    return adapter


def _bytes(folder: Path) -> str:
    return format_bytes(sum(file.stat().st_size for file in folder.glob("*.safetensors")))


def _numbers(folder: Path) -> str:
    from safetensors import safe_open

    count = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="np") as tensors:
            count += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    return f"{count:,} numbers, {_bytes(folder)}"


def how_to_load(adapter: Taken, form: Form) -> list[str]:
    """Returns lines of Python that load an adapter, or a merged model, from its folder; and commands that serve it."""
    merged = form == "merged"
    run, config, folder = read_run(adapter.folder), peft_config(adapter.folder), str(adapter.folder)
    # a LoRA is written for programs without this package; over a GGUF base it needs the package
    alone = form == "lora" and not is_gguf(str(run["spec"]["model"]))
    by: Literal["craft", "peft", "transformers"] = "transformers" if merged else "peft" if alone else "craft"
    lines = loading(run, by, folder, config).splitlines()
    return [*lines, *served_by(run, config, folder, merged=merged)]


def slug(name: str) -> str:
    """Returns `name` as part of a path or of a model's name: letters and digits of any script, `_` and `-`; never empty."""
    return re.sub(r"[^\w-]+", "-", name).strip("-")[:80] or "task"


def folders_of(tasks: Iterable[str]) -> dict[str, str]:
    """Returns the name of each task's folder, empty for a single task. Numbers separate equal names."""
    folders = dict.fromkeys(tasks, "")
    for task in folders if len(folders) > 1 else ():
        name, number = slug(task), 2
        while name in folders.values():
            name, number = f"{slug(task)}-{number}", number + 1
        folders[task] = name
    return folders


def cut_adapters(
    record: PastSweep, trained: Summary, sizes: Sequence[str], to: Path, base: str | None = None
) -> Iterator[tuple[str, float]]:
    """Cuts the adapters of all trials of a configuration to every size, into `to`/SIZE, with a folder for each task and seed
    where there are several. Yields the label of each cut with the most parameters that one of its adapters has.

    Args:
        sizes: a rank as text, or `parameters:N` for the whole adapter.
    """
    from craft.trainer.cuts import cut_and_score, read_size

    if not trained.complete:
        raise NothingMeets(
            f"{full_label(trained)} is not complete ({describe_trials(trained)}): all its tasks and seeds are cut. Finish the "
            "sweep (--resume), or pick a complete one"
        )
    entries = [entry for entry in record.trials(trained.configuration) if entry.finished]  # a seed added later may not have
    folders, seeds = folders_of(entry.trial.task for entry in entries), {entry.trial.seed for entry in entries}
    with filled(to) as aside, tempfile.TemporaryDirectory(prefix="craft-cut-") as scratch:
        for cut in dict.fromkeys(read_size(text, trained.method) for text in sizes):
            most = 0.0
            for entry in entries:
                adapter = record.adapter(entry.key, Path(scratch) / "whole" / entry.key)
                place = Path(scratch) / slug(cut) / entry.key
                _, result = cut_and_score(adapter, cut, place, score=False, base=base)
                most = max(most, result.counts.trainable_parameters)
                of_seed = f"seed-{entry.trial.seed}" if len(seeds) > 1 else ""
                shutil.copytree(result.adapter, aside / slug(cut) / folders[entry.trial.task] / of_seed)
            size = int(trained.value("trainable_parameters"))
            share = size_labels([int(cut.removeprefix(BUDGET))], size)[0] if cut.startswith(BUDGET) else f"r{cut}"
            yield full_label(trained) + CUT + share, most


class AdapterPart(Part):
    """One adapter, or one merged model."""

    task: str = Field(description="The task that it was trained on.")
    seed: int = Field(description="The seed of its trial.")
    trial: str = Field(description="The key of its trial.")
    score: Number = Field(description="The reported score of this trial, in points.")
    search_score: Number = Field(description="Its score on the split that may choose, in points.")
    reasons: list[str] = Field(description="Why it is this configuration and this trial, in sentences.")
    path: str | None = Field(description="The folder that has it. Null if it was registered only.")
    files: list[str] = Field(description="The files in that folder.")
    load: list[str] = Field(description="Lines of Python that load it from there.")


class TakeReport(Report):
    """Adapters that were written for one configuration."""

    report: Literal["take"] = Field("take", description="The kind of this report.")
    sweep: str = Field(description="The name of the sweep.")
    configuration: str = Field(description="The id of the configuration.")
    label: str = Field(description="Its name for people.")
    trainable_parameters: Count = Field(description="Trainable parameters of the adapter, without the task head.")
    form: Form = Field(description="What was written: the adapter, the same change of weights as a LoRA, or a merged model.")
    adapters: list[AdapterPart] = Field(description="What was taken, one for each task.")
    registered: list[str] = Field(description="What the model registry got, in sentences. Empty if nothing was registered.")


def take_report(
    record: PastSweep,
    chosen: Pick,
    adapters: Sequence[Taken],
    *,
    form: Form = "adapter",
    written: bool = True,
    registered: Sequence[str] = (),
) -> TakeReport:
    return TakeReport(
        sweep=record.name,
        configuration=chosen.summary.configuration,
        label=full_label(chosen.summary),
        trainable_parameters=chosen.summary.value(SIZE),
        form=form,
        adapters=[_adapter(adapter, form, written) for adapter in adapters],
        registered=list(registered),
    )


def _adapter(adapter: Taken, form: Form, written: bool) -> AdapterPart:
    entry, folder = adapter.entry, adapter.folder
    metrics = entry.result.metrics if entry.result else {}
    files = (path for path in folder.rglob("*") if path.is_file()) if written else ()
    return AdapterPart.fill(
        entry.trial,
        trial=entry.key,
        score=metrics.get("score"),
        search_score=metrics.get("search_score"),
        reasons=list(adapter.reasons),
        path=str(folder) if written else None,
        files=sorted(str(path.relative_to(folder)) for path in files),
        load=how_to_load(adapter, form) if written else [],
    )


class CutReport(Report):
    """Adapters of a configuration that were cut."""

    report: Literal["cut"] = Field("cut", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    configuration: str = Field(description="The id of the configuration whose adapters were cut.")
    reason: str = Field(description="Why it is this one, in a sentence.")
    path: str = Field(description="The folder that has a folder for each size.")
    sizes: dict[str, Count] = Field(description="By the name of a size for people: the most parameters of one of its adapters.")


def register_adapters(record: PastSweep, adapters: Sequence[Taken], model: str, tracking_uri: str | None) -> Iterator[str]:
    """Makes each adapter a version of the registered model `model`; for several tasks, of `model`-TASK. Yields lines on it."""
    from orchestrator.tracking.registry import Candidate, find_trial, register

    uri = resolve_uri(tracking_uri) if tracking_uri else record.uri
    if uri is None:
        raise ValueError("the sweep's record keeps no passwords, so its tracking store is not known: give --tracking-uri")
    earned = titles(record.summaries, record.sweep.objectives, record.sweep.enough)
    names = folders_of(adapter.entry.trial.task for adapter in adapters)
    for adapter in adapters:
        run = read_run(adapter.folder)
        if run["kind"] == "generation":
            raise ValueError(
                f"{adapter.entry.trial.task} is answered in words; only classification and regression can be served. Leave "
                "--register out"
            )
        name = "-".join(filter(None, (model, names[adapter.entry.trial.task])))
        candidate = Candidate(
            adapter.folder,
            name,
            pair=reads_pairs(run),
            labels=run["labels"] if run["kind"] == "classification" else ["value"],
            aliases=[alias for alias, configuration in earned.items() if configuration == adapter.summary.configuration],
            tags=_tags(adapter, run),
            description=_describe(adapter),
        )
        registered = register(uri, find_trial(uri, record.name, record.state.sweep_id, adapter.entry.key), candidate)
        word = "registered as" if registered.new else "is registered already as"
        also = f", also called {', '.join(candidate.aliases)}" if candidate.aliases else ""
        yield f"{adapter.entry.trial.task}: {word} version {registered.version} of {name}{also}"
        for alias, version in registered.moved.items():
            yield f"  {alias} was version {version} before"
        handle = f"{name}@{candidate.aliases[0]}" if candidate.aliases else f"{name}/{registered.version}"
        yield f"  MLFLOW_TRACKING_URI={shlex.quote(redact(uri))} mlflow models serve -m 'models:/{handle}' --env-manager local"


def _describe(adapter: Taken) -> str:
    score = adapter.summary.bounds("score")
    numbers = {"score": score.mean, "score_low": score.low, "score_high": score.high, SIZE: adapter.summary.value(SIZE)}
    card = (adapter.folder / CARD_FILE).read_text(encoding="utf-8")
    return f"{headline(numbers)}\n\n{card.split('---', 2)[-1].strip()}"


def _tags(adapter: Taken, run: Mapping[str, Any]) -> dict[str, str]:
    trial = adapter.entry.trial
    tags = {"sweep": adapter.sweep, "configuration": trial.configuration, "label": trial.label, "key": trial.key}
    tags |= {"task": trial.task, "seed": str(trial.seed), "method": trial.method, "protocol": trial.protocol}
    tags |= {"model": run["spec"]["model"], "score": f"{run['metrics']['score']:.4f}", "picked": adapter.reasons[0]}
    return {f"craft.{name}": str(value)[:4000] for name, value in tags.items()}
