"""`python -m orchestrator.doctor SWEEP.yaml [--address auto] ...` checks whether a sweep would get through the night.

    every machine    sees the storage, the model and the data, and has the same data and libraries as the others
    the cluster      has room for a trial; its GPUs are free, torch computes on them, and trials fit into their memory
    tracking store   answers and takes a write (a throw-away run, deleted again)
    disk             has room for the checkpoints and adapters of the plan

It trains nothing and leaves nothing behind. Exit status: 0 all good (doubts are shown), 1 something would go wrong, 2 the file
or the call is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from craft.words import format_bytes, redact
from orchestrator.command import QUIET, joinable
from orchestrator.record.tracking_uri import resolve_uri, sqlite_file
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tools.quiet import noise_to_log

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan
    from orchestrator.sweepfile.resources import Resources
    from orchestrator.tune.cluster import Answer

GOOD, TROUBLE, WRONG = 0, 1, 2
KEPT_CHECKPOINTS = 2
STATES_A_PARAMETER = 4
"""Numbers in a checkpoint for each trained parameter: its value, its best value, Adam's two moments."""
BUSY_SHARE = 0.1

Level = Literal["good", "doubt", "bad"]
MARKS: dict[Level, str] = {"good": "[green]good[/]", "doubt": "[yellow]doubt[/]", "bad": "[bold red]bad[/]"}


@dataclass(frozen=True)
class Finding:
    """One thing that was checked; `advice` says what to do if it is not good."""

    level: Level
    what: str
    found: str
    advice: str = ""


def diagnose(plan: Plan, storage: str, address: str | None, tracking_uri: str) -> list[Finding]:
    """All checks."""
    return [*_tracking(tracking_uri), *_machines(plan, storage, address)]


def _tracking(uri: str) -> Iterator[Finding]:
    file, shown = sqlite_file(uri), redact(uri)
    if file is not None and not file.exists():
        parent = next(folder for folder in file.parents if folder.exists())
        if os.access(parent, os.W_OK):
            yield Finding("good", "tracking", f"{shown} will be made")
        else:
            yield Finding("bad", "tracking", f"{parent} cannot be written", "give --tracking-uri of another file or a server")
        return
    from orchestrator.record.mlflow_probe import probe

    try:
        artifacts = probe(uri)
    except Exception as error:  # stores, their drivers and the network have errors of their own
        reason = redact(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)[:300]
        advice = "is the server up, and are MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD set, if it asks for them?"
        yield Finding("bad", "tracking", f"{shown}: {reason}", advice)
    else:
        yield Finding("good", "tracking", f"{shown} took a run and gave it back; artifacts go by {artifacts}")


def _machines(plan: Plan, storage: str, address: str | None) -> Iterator[Finding]:
    from orchestrator.worker.examination import put_token, take_token

    token = f".doctor-{uuid.uuid4().hex}"
    try:
        put_token(storage, token)
    except (OSError, ValueError) as error:
        yield Finding("bad", "storage", f"{storage}: {error}", "give another by --storage, or its permissions")
        return
    try:
        answers, fitting = _ask(plan, storage, token, address)
    except ValueError as error:
        yield Finding("bad", "cluster", str(error))
        return
    finally:
        with suppress(OSError):
            take_token(storage, token)
    yield from fitting
    for answer in answers:
        yield from _one_machine(answer, plan.sweep)
    yield from _agreement(answers)
    yield _disk(plan, storage, answers)


def _ask(plan: Plan, storage: str, token: str, address: str | None) -> tuple[list[Answer], list[Finding]]:
    from orchestrator.plan.gpu_shares import idle_lines, this_machine
    from orchestrator.tune.cluster import Answer, ask_each, joined
    from orchestrator.tune.gpus import idle
    from orchestrator.worker.examination import examine
    from orchestrator.worker.gpus import usable_gpus

    shares = plan.sweep.shares
    trials = plan.trials or plan.examples
    runs = list({trial.run.task: trial.run.model_dump(mode="json") for trial in trials}.values())
    wanted = any(share.gpu for share in shares)
    question = (storage, token, runs, wanted)
    if address is None and not wanted:
        content = examine(*question)
        has = this_machine(shares, usable_gpus())
        room = [_fitting(share, share.slots(has)) for share in shares]
        return [Answer(content["host"], has, content)], [*room, *_idle(idle_lines(shares, [has]))]
    with noise_to_log(Path(os.devnull)), joined(address) as cluster:
        room = [_fitting(share, cluster.slots(share), cluster=address is not None) for share in shares]
        answers = ask_each(examine, *question)
        return answers, [*room, *_idle(idle(shares)), *(_tried_gpus(plan) if wanted else ())]


def _idle(lines: Sequence[str]) -> Iterator[Finding]:
    for line in lines:
        yield Finding("doubt", "idle GPUs", line)


def _tried_gpus(plan: Plan) -> Iterator[Finding]:
    """Whether torch computes on the GPUs of the machines that may get a trial, and whether trials fit into their memory."""
    from orchestrator.plan.gpu_shares import memory_lines
    from orchestrator.tune.gpus import try_gpus

    shares = [share for share in plan.sweep.shares if share.gpu]
    tried = try_gpus(min(share.gpu for share in shares))
    answers = [one for one in tried if any(one.resources.keys() >= share.asked.keys() for share in shares)]
    for answer in answers:
        what = f"{answer.host}: torch"
        if answer.late:
            yield Finding("doubt", what, f"{answer.error} from a task with a GPU", "all of its GPUs may be in use")
        elif answer.error is not None:
            yield Finding("bad", what, answer.error, "trials fail there; once it is mended, --resume tries them again")
        else:
            yield Finding("good", what, f"computes on {answer.content.name} with {format_bytes(answer.content.bytes)}")
    for line in memory_lines(plan, [answer.content for answer in answers if answer.error is None]):
        yield Finding("doubt", "GPU memory", line)


def _fitting(share: Resources, slots: int, cluster: bool = False) -> Finding:
    asked = share.told()
    if slots:
        return Finding("good", "room", f"{slots} trials at once, each with {asked}")
    if cluster:
        return Finding(
            "doubt", "room", f"no trial fits now: each asks for {asked}", "only if the cluster grows; or `resources`"
        )
    return Finding("bad", "room", f"no trial fits here: each asks for {asked}", "lower `resources`, or give --address")


def _one_machine(answer: Answer, sweep: Sweep) -> Iterator[Finding]:
    host = answer.host
    if answer.error is not None:
        yield Finding("bad", host, answer.error, "is craft-sweeps installed there, of the same version?")
        return
    content = answer.content
    for what, why in content["faults"].items():
        yield Finding("bad", f"{host}: {what}", why)
    if not content["faults"]:
        yield Finding("good", host, "sees the storage, the model and the data")
    if any(share.gpu for share in sweep.shares) and answer.resources.get("CPU"):
        yield from _gpu_findings(host, content["gpus"], answer.resources.get("GPU", 0))


def _gpu_findings(host: str, gpus: list[tuple[str, int, int]], known: float) -> Iterator[Finding]:
    if not known and not gpus:
        yield Finding("doubt", f"{host}: GPUs", "none; no trial that asks for one will run here")
    if not gpus:
        return  # nvidia-smi is not everywhere; what torch says there is what counts
    busy = [f"{name} has {used:,} of {total:,} MiB in use" for name, total, used in gpus if used > BUSY_SHARE * total]
    if known < len(gpus):
        yield Finding("doubt", f"{host}: GPUs", f"{len(gpus)} there and {known:g} given to Ray", "ray start --num-gpus")
    if busy:
        yield Finding("doubt", f"{host}: GPUs", "; ".join(busy), "somebody else uses them: trials may run out of memory")
    else:
        yield Finding("good", f"{host}: GPUs", f"{len(gpus)} free: {', '.join(sorted({name for name, _, _ in gpus}))}")


def _agreement(answers: Sequence[Answer]) -> Iterator[Finding]:
    """Whether the machines that answered have the same libraries and data as each other and as this one."""
    from orchestrator.worker.examination import own_versions

    contents: dict[str, Any] = {answer.host: answer.content for answer in answers if answer.error is None}
    own = own_versions()
    different = [
        f"{host} has {package} {found}, the driver {own[package]}"
        for host, content in contents.items()
        for package, found in content["versions"].items()
        if found != own[package]
    ]
    if different:
        yield Finding("bad", "versions", "; ".join(different), "install the same everywhere: results differ, or nothing runs")
    elif contents:
        yield Finding("good", "versions", ", ".join(f"{package} {found}" for package, found in own.items()))
    for task in {task for content in contents.values() for task in content["data"]}:
        prints = {host: content["data"].get(task) for host, content in contents.items() if content["data"].get(task)}
        if len(set(prints.values())) > 1:
            seen = ", ".join(f"{host} {fingerprint}" for host, fingerprint in prints.items())
            yield Finding("bad", f"data {task}", f"machines read different data: {seen}", "copy the same files to all of them")


def needed_bytes(plan: Plan) -> int:
    """The most bytes that the plan's checkpoints and adapters take on storage."""
    trials_each = len(plan.sweep.task_names) * len(plan.sweep.seeds)
    total = 0
    for one in plan.configurations:
        trained = one.counts.trainable_parameters + one.counts.head_parameters
        total += trials_each * (KEPT_CHECKPOINTS * trained * 4 * STATES_A_PARAMETER + 2 * one.counts.adapter_bytes)
    return total


def _disk(plan: Plan, storage: str, answers: Sequence[Answer]) -> Finding:
    need = needed_bytes(plan)
    known = [answer.content["free_bytes"] for answer in answers if answer.error is None]
    free = min((amount for amount in known if amount is not None), default=None)
    what = f"the plan may write {format_bytes(need)}"
    if free is None:
        return Finding("good", "disk", f"{what} to {storage}")
    level: Level = "bad" if need > free else "doubt" if need > free / 2 else "good"
    advice = "" if level == "good" else "make room, give another --storage, or run fewer configurations at a time"
    return Finding(level, "disk", f"{what}, {format_bytes(free)} are free in {storage}", advice)


def show(findings: Sequence[Finding], console: Console) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for one in findings:
        found = f"{one.found}; {one.advice}" if one.advice else one.found
        table.add_row(MARKS[one.level], _plain(one.what), _plain(found))
    console.print(table)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    flags = argparse.ArgumentParser(
        prog="python -m orchestrator.doctor",
        description="Check whether a sweep would get through the night. Give it the same flags as the run.",
        epilog="exit status: 0 all good (doubts are shown); 1 something would go wrong; 2 the file or the call is wrong",
    )
    flags.add_argument("sweep", metavar="SWEEP.yaml", help="the sweep file")
    flags.add_argument("--set", dest="overrides", metavar="KEY.PATH=VALUE", action="append", default=[], help="as for the run")
    flags.add_argument("--storage", metavar="FOLDER|URI", help="where runs are kept, instead of the file's")
    flags.add_argument("--address", type=joinable, help="a Ray cluster to look at; this machine alone if not given")
    flags.add_argument("--tracking-uri", metavar="URI", help="the MLflow store, instead of the file's")
    given = flags.parse_args(arguments)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        sweep = load_sweep(given.sweep, given.overrides)
        uri = resolve_uri(given.tracking_uri or sweep.tracking.uri)
        from orchestrator.search.warm_start import planned

        plan = planned(sweep)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        return 130
    storage = given.storage or sweep.storage
    findings = diagnose(plan, storage if "://" in storage else str(Path(storage).absolute()), given.address, uri)
    show(findings, Console(highlight=False, width=None if sys.stdout.isatty() else 200))
    return TROUBLE if any(one.level == "bad" for one in findings) else GOOD


if __name__ == "__main__":
    sys.exit(main())
