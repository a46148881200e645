"""`craft-sweeps check SWEEP.yaml`: can a sweep run to its end?

    tracking store   answers and takes a write to the sweep's experiment; nothing is left there
    storage          can be written, and has room for the checkpoints and adapters of the plan
    the machine      has model and data, prepared as a run prepares them; what is fetched stays in the caches
    a cluster        has room for a trial; each machine sees the storage and the driver's data
    GPUs             torch computes on them, and trials fit into their memory

    processes        trials of several processes take one step in them

It trains nothing else.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pyarrow import fs
from pydantic import Field
from pydantic.dataclasses import dataclass
from rich.console import Console
from rich.table import Table
from rich.text import Text

from craft.spec import RunSpec
from craft.words import format_bytes, plural
from orchestrator.commands.start import store_of
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.trial import Job
from orchestrator.plan.tuning import most_choices
from orchestrator.record.checkpoints import check_writable, open_storage
from orchestrator.results.report import Report
from orchestrator.tools.quiet import noise_to_log
from orchestrator.tools.secrets import redact
from orchestrator.tracking.client import TrackingError, check_store
from orchestrator.worker.preparation import Shared, prepare

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan
    from orchestrator.plan.ways import Gpu
    from orchestrator.record.options import Options
    from orchestrator.sweepfile.resources import Resources
    from orchestrator.sweepfile.sweep import Sweep

KEPT_CHECKPOINTS = 2
STEP_ROWS, STEP_SECONDS = 8, 600.0
"""Of the step that is taken in several processes: the rows that are scored after it, and how long it may take."""
STATES_A_PARAMETER = 4
"""Numbers in a checkpoint for each trained parameter: its value, its best value, Adam's two moments."""

Level = Literal["good", "doubt", "bad"]


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    level: Annotated[Level, Field(description="`good`; `doubt`: it may go wrong; `bad`: it would go wrong.")]
    subject: Annotated[str, Field(description="What was checked, such as `storage` or a machine's name.")]
    sentence: Annotated[str, Field(description="How it is.")]
    remedy: Annotated[str, Field(description="What to do if it is not good. Empty if it is.")] = ""


class CheckReport(Report):
    """Whether a sweep would run to its end here."""

    report: Literal["check"] = Field("check", description="The kind of this report.")
    ok: bool = Field(description="Whether nothing is `bad`. The exit status is 0 then, and 1 otherwise.")
    findings: list[Finding] = Field(description="What was checked, in order. A `bad` one may end the checks.")

    def show(self, console: Console) -> None:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        table.add_column(overflow="fold")
        for finding in self.findings:
            lines = "; ".join(filter(None, (finding.sentence, finding.remedy)))
            table.add_row(MARKS[finding.level], Text(finding.subject), Text(lines))
        console.print(table)


MARKS: dict[Level, str] = {"good": "[green]good[/]", "doubt": "[yellow]doubt[/]", "bad": "[bold red]bad[/]"}


def diagnose(plan: Plan, options: Options, machines: int | None = None) -> Iterator[Finding]:
    """Yields the findings of all checks of a run's call; what a run would be refused for ends them.

    Args:
        machines: how many machines the cluster must have; it never grows then.
    """
    storage, address = options.remote or str(Path(plan.sweep.storage).absolute()), options.address
    yield from _tracking(store_of(options, plan.sweep), plan.sweep)
    subject = "storage"
    try:
        check_writable(storage)
        yield _disk(plan, storage)
        subject = "model and data"
        shared = Shared(prepare(plan.trials or plan.examples, elsewhere=address is not None))
        yield Finding("good", subject, "are here" if address is None else "can be read by the driver")
        subject = "cluster"
        yield from _on_cluster(plan, storage, shared, address, machines)
    except (ValueError, OSError) as error:
        yield Finding("bad", subject, (str(error).strip() or type(error).__name__).splitlines()[0][:400])


def _on_cluster(plan: Plan, storage: str, shared: Shared, address: str | None, machines: int | None) -> Iterator[Finding]:
    """Yields what was found on the machines. The cluster is left before the first finding."""
    from orchestrator.tune.cluster import joined, try_gpus

    found, alone = list[Finding](), address is None or machines is not None
    with noise_to_log(Path(os.devnull)), joined(address) as cluster:
        if machines:
            present = cluster.await_machines(machines)
            few = "" if present >= machines else "what the missing ones printed says why"
            found.append(Finding("bad" if few else "good", "machines", f"{present} of {machines} have joined", few))
        for share in plan.sweep.shares:
            if slots := share.slots(*cluster.machines):
                fitting = f"{slots} {plural(slots, 'trial')} at once, each with {share.describe()}"
                found.append(Finding("good", "room", fitting))
            else:
                remedy = f"{'' if alone else 'only if the cluster grows; or '}lower `resources`"
                remedy += ", or give more by --address" if alone else ""
                fitting = f"no trial fits now: each asks for {share.describe()}"
                found.append(Finding("bad" if alone else "doubt", "room", fitting, remedy))
        found += [] if address is None else _machines(plan, storage, shared.fingerprints)
        requested = [share.gpu / share.count for share in plan.sweep.shares if share.gpu]
        tried = try_gpus(min(requested)) if requested else []
        several = [share for share in plan.sweep.shares if share.count > 1 and (share.slots(*cluster.machines) or not alone)]
        steps = list(_together(plan, shared, several))
        counts = [machine.get("GPU", 0) for machine in cluster.machines]
    yield from [*found, *_gpus(plan, {reply.host: reply.error or reply.result for reply in tried}, counts), *steps]


def _tracking(uri: str, sweep: Sweep) -> Iterator[Finding]:
    try:
        yield Finding("good", "tracking", f"{redact(uri)} {check_store(uri, sweep.name, sweep.tracking.experiment)}")
    except TrackingError as error:
        yield Finding("bad", "tracking", str(error))


def _machines(plan: Plan, storage: str, fingerprints: Mapping[str, str]) -> Iterator[Finding]:
    """Checks that each machine of the joined cluster sees the storage and the driver's data."""
    from orchestrator.tune.cluster import ask_each

    runs = list({trial.run.task: trial.run.model_dump(mode="json") for trial in plan.trials or plan.examples}.values())
    filesystem, root = open_storage(storage)
    token = posixpath.join(root, f".check-{uuid.uuid4().hex}")
    with filesystem.open_output_stream(token) as file:
        file.write(b"ok")
    try:
        replies = ask_each(check_machine, storage, posixpath.basename(token), runs, dict(fingerprints))
    finally:
        with suppress(OSError):
            filesystem.delete_file(token)
    for reply in replies:
        if reply.error is None:
            yield Finding("good", reply.host, "sees the storage and the driver's data")
        else:
            yield Finding("bad", reply.host, reply.error, "is craft-sweeps installed there, of the same version?")


def check_machine(storage: str, token: str, runs: Sequence[dict[str, Any]], fingerprints: dict[str, str]) -> None:
    """Checks on a machine of the cluster that it sees the storage and has the driver's data.

    Args:
        token: the name of a file that the driver has just put into the storage.
        runs: one run of each task of the sweep, as JSON.
    """
    filesystem, root = open_storage(storage)
    if filesystem.get_file_info(posixpath.join(root, token)).type != fs.FileType.File:
        raise OSError(f"{storage} is not the folder that the driver writes to: a file it has just put there is missing")
    for run in runs:
        with Shared(fingerprints).checked(RunSpec.model_validate(run)):
            pass


def _together(plan: Plan, shared: Shared, several: Sequence[Resources]) -> Iterator[Finding]:
    """Takes a step of a trial of each of these shares of several processes, in those processes."""
    from orchestrator.tune.crew import try_steps

    firsts = {trial.resources.describe(): trial for trial in plan.trials or plan.examples if trial.resources in several}
    for trial in firsts.values():
        training = trial.run.training
        batch = training.batch_size * training.gradient_accumulation
        rows = {"train_examples": batch, "eval_examples": STEP_ROWS, "search_examples": STEP_ROWS}
        short = training.model_copy(update={"max_steps": 1, "evaluate_every": "end"} | rows)
        run = trial.run.model_copy(update={"training": short, "warm_start": None})
        reason = try_steps(Job(replace(trial, run=run)), shared.checked, STEP_SECONDS)
        how = f"took a step of {trial.label} together" if reason is None else f"{trial.label}: {reason}"
        yield Finding("good" if reason is None else "bad", f"{trial.resources.count} processes", how)


def _gpus(plan: Plan, tried: Mapping[str, Gpu | str], counts: Sequence[float]) -> Iterator[Finding]:
    """Reports whether torch computes on the GPUs that were tried, and whether trials fit into their memory; `counts` are the
    numbers of GPUs of machines."""
    from orchestrator.plan.table import gpu_lines

    for host, gpu in tried.items():
        if isinstance(gpu, str):
            yield Finding("bad", f"{host}: torch", gpu, "trials fail there; once it is fixed, --resume tries them again")
        else:
            yield Finding("good", f"{host}: torch", f"computes on {gpu.name} with {format_bytes(gpu.bytes)}")
    usable = [gpu for gpu in tried.values() if not isinstance(gpu, str)]
    for line in gpu_lines(plan, usable, counts):
        yield Finding("doubt" if line.doubt else "good", line.label, line.value)


def needed_bytes(plan: Plan) -> int:
    """Returns the most bytes that the plan's checkpoints and adapters take on storage.

    Every configuration of an adaptive plan counts as its largest probed point. Where candidates are tuned, all may have to be
    tried, and the best of each group is trained with the reported seeds.
    """
    sweep, cuts = plan.sweep, dict[str, list[Configuration]]()
    for cut in plan.configurations:
        if cut.source is not None:
            cuts.setdefault(cut.source.id, []).append(cut)

    def of_one(trained: Configuration, sizes: Sequence[Configuration]) -> int:
        parameters = trained.counts.trainable_parameters + trained.counts.head_parameters
        adapters = sum(each.counts.adapter_bytes for each in (trained, *sizes))
        return KEPT_CHECKPOINTS * parameters * 4 * STATES_A_PARAMETER + 2 * adapters

    if plan.largest is not None:
        each = len(sweep.seeds) * plan.wanted * of_one(plan.largest, plan.planner.sizes_of(plan.largest))
    elif not sweep.tunes:
        each = len(sweep.seeds) * sum(of_one(trained, cuts.get(trained.id, ())) for trained in plan.trained)
    else:
        each = 0
        for group, alone in [(group, family.candidates == 1) for family in plan.families for group in family.groups]:
            needs = [of_one(candidate, cuts.get(candidate.id, ())) for candidate in group]
            each += 0 if alone else len(sweep.seeds) * sum(needs)
            each += len(sweep.reported_seeds) * max(needs) * most_choices(sweep, group)
    return len(sweep.task_names) * each


def _disk(plan: Plan, storage: str) -> Finding:
    need = needed_bytes(plan)
    amount = f"the plan may write {format_bytes(need)}"
    filesystem, root = open_storage(storage)
    if not isinstance(filesystem, fs.LocalFileSystem):
        return Finding("good", "disk", f"{amount} to {storage}")
    free = shutil.disk_usage(root).free
    level: Level = "bad" if need > free else "doubt" if need > free / 2 else "good"
    remedy = "" if level == "good" else "make room, give another --storage, or run fewer configurations at a time"
    return Finding(level, "disk", f"{amount}, {format_bytes(free)} are free in {storage}", remedy)
