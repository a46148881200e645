"""Commands about one run and one model, without a sweep: `train`, `energy`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from orchestrator.commands.options import Changes, SweepFile, screen
from orchestrator.record.options import Options
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.tools.quiet import write_report

if TYPE_CHECKING:
    from craft.results import Progress
    from orchestrator.plan.plan import Plan
    from orchestrator.plan.trial import Job

USUAL_RANKS = (8, 16, 32, 64, 100, 128, 250, 360)
USE = """
{steps} steps in {seconds:.1f} s. The adapter is in {folder}. To use it as a model of transformers:

  from craft import load_adapter
  model, tokenizer = load_adapter({folder!r})"""


def train(
    sweep: SweepFile,
    changes: Changes = None,
    warm_start: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Start from the adapter in this folder; the task head of another task is left out."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where adapter and checkpoints go; runs/NAME/KEY if not given.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest complete checkpoint there.")] = False,
) -> int:
    """Train the one training of a sweep file, in this process.

    Neither Ray nor MLflow is used. The adapter is scored, cut to the `sizes` of its block, and saved in PEFT's format. For
    a file with several trainings, use --set to choose one.

    Exit status: 0 finished; 1 the run failed; 2 the call is wrong; 130 interrupted (the same call with --resume continues).
    """
    from craft.results import RunPrevented
    from craft.trainer.checkpoint import find_newest_checkpoint
    from orchestrator.commands.start import plan_sweep
    from orchestrator.worker.run_job import run_job

    plan = plan_sweep(Options(sweep, tuple(changes or ())), screen(quiet=True))
    job = _only_job(plan, warm_start)
    run, counts, folder = job.training.run, job.training.planned, to or plan.sweep.folder / job.key
    _check_folder(folder, job)
    _say(f"{job.training.trial.name} on {run.model}: {counts['trainable_parameters']:,.0f} adapter parameters, "
         f"{counts['head_parameters']:,.0f} in the head")  # fmt: skip
    checkpoint = find_newest_checkpoint(folder) if resume else None
    if checkpoint:
        _say(f"continuing from {checkpoint}")
    try:
        outcomes = run_job(job, folder, _report, resume_from=checkpoint)
    except RunPrevented as error:
        _say(f"the run failed: {error}")
        return 1
    (result, adapter), *cuts = [(each.result, each.adapter) for each in outcomes]
    if adapter is None:
        _say(f"the run failed: {result.error}")
        return 1
    for name, value in (result.metrics | result.counts).items():
        print(f"{name:<24}{value:,.4f}".removesuffix(".0000"))
    for cut, place in cuts:
        if place is None:
            _say(f"a cut failed: {cut.error}")
        else:
            print(f"cut to {cut.counts['trainable_parameters']:,.0f} parameters: score {cut.metrics['score']:.2f}, {place}")
    for note in result.notes:
        print(f"note: {note}")
    print(USE.format(folder=str(adapter), steps=result.steps, seconds=result.seconds))
    return 0


def _only_job(plan: Plan, warm_start: Path | None) -> Job:
    if len(plan.jobs) != 1:
        names = [job.training.trial.name for job in plan.jobs[:3]]
        advice = "narrow it to one, such as with --set 'seeds=[0]' and --set 'space=[{method: lora, rank: 8}]'"
        raise SweepError([f"the file has {len(plan.jobs)} trainings ({'; '.join(names)}, ...): {advice}"])
    (job,) = plan.jobs
    if warm_start is None:
        return job
    from craft.settings import WarmStart
    from craft.spec import RunSpec

    adapter = warm_start if (warm_start / "run.json").is_file() else warm_start / "adapter"
    try:
        source = RunSpec.model_validate(json.loads((adapter / "run.json").read_text(encoding="utf-8"))["spec"])
    except FileNotFoundError:
        raise SweepError([f"--warm-start {warm_start}: no adapter of this project is there (no run.json)"]) from None
    except (ValueError, KeyError):
        raise SweepError([f"--warm-start {warm_start}: {adapter / 'run.json'} cannot be read"]) from None
    run = job.training.run.model_copy(update={"warm_start": WarmStart(run=source.key, adapter=str(adapter.resolve()))})
    return replace(job, training=replace(job.training, run=run))


def _check_folder(folder: Path, job: Job) -> None:
    from craft.spec import RunSpec
    from craft.trainer.checkpoint import identity

    record = folder / "adapter" / "run.json"
    if record.is_file():
        trained = RunSpec.model_validate(json.loads(record.read_text(encoding="utf-8"))["spec"])
        if identity(trained) != identity(job.training.run):
            raise SweepError([f"--to {folder}: it has another run's adapter; give another folder"])
    existing = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise SweepError([f"--to {folder}: {existing} cannot be written"])


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _report(progress: Progress) -> None:
    figures = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in progress.metrics.items())
    _say(f"epoch {progress.epoch:.2f}  step {progress.step}/{progress.total_steps}  {figures}")


def energy(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, local folder or FOLDER/FILE.gguf.")],
    projections: Annotated[str, typer.Option(metavar="'WORD ...'")] = "q v",
    ranks: Annotated[
        list[str] | None, typer.Option(metavar="R1,R2,R3", help="Repeatable; all = full. Usual ranks if not given.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where to decompose, such as cuda; the CPU if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON instead of a table.")] = False,
) -> None:
    """Show how much of a model's weights CRAFT's ranks keep.

    The table has the share of the squared norm, by rank. The decompositions go into the cache, where later runs find them."""
    from craft.ranks import parse_ranks

    rows = [*_energy_kept(model, projections.replace(",", " ").split(), [parse_ranks(text) for text in ranks or ()], device)]
    if as_json:
        write_report(json.dumps(rows))
        return
    table = Table("projection", "r1, r2, r3", "trains", "energy kept", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        triple, parameters = ", ".join(map(str, row["ranks"])), f"{row['parameters']:,}"
        table.add_row(row["projection"], triple, parameters, f"{row['energy_kept']:.1%}")
    screen().print(table)


def _energy_kept(
    model: str, projections: Sequence[str], ranks: Sequence[Sequence[int | str]], device: str | None
) -> Iterator[dict[str, Any]]:
    """Yields what each of `ranks`, or usual ones if there are none, keeps of each of the model's projections: the share
    ||R||^2 / ||W||^2 of a stack's squared norm. The factors are orthonormal, so ||R|| = ||G||, and one decomposition gives the
    share of every smaller rank triple."""
    import torch

    from craft.factors.hosvd import stack_factors
    from craft.models import Base
    from craft.models.loading import load_config, load_model
    from craft.models.projections import find_projections
    from craft.ranks import resolve_ranks
    from craft.tuners.craft.stack import base_weight

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # the second without CUDA in torch
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"--device {device!r}: torch cannot use it here ({reason}); leave it out for the CPU") from error
    # The format that the files have, with any head: no head has projections.
    narrow = load_config(Base(model, "generation", ())).dtype == torch.bfloat16
    base = load_model(Base(model, "classification", ("no", "yes"), precision="bfloat16" if narrow else "float32"))
    for name, layers in find_projections(base, projections).items():
        shape = (len(layers), *layers[0].shape)
        least = min(shape[1:])
        usual = [(shape[0], rank, rank) for rank in USUAL_RANKS if rank <= least] or [(shape[0], least, least)]
        triples = [resolve_ranks(triple, shape, name=f"projection {name!r}") for triple in ranks] or usual
        weights = [base_weight(base.get_submodule(layer.module_name), layer) for layer in layers]
        largest = [max(triple[mode] for triple in triples) for mode in range(3)]
        factors = stack_factors(weights, largest, name=name, device=device)
        total = factors.squared_norm
        for triple in triples:
            share = float(factors.slice(triple).core.double().square().sum()) / total if total else 1.0
            parameters = sum(rank * rank for rank in triple)
            yield {"projection": name, "ranks": triple, "parameters": parameters, "energy_kept": share}
