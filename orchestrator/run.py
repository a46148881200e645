"""The command line of a sweep: `python -m orchestrator.run SWEEP.yaml` plans it, runs it, resumes it and shows its front.

Nothing heavier than pydantic is imported until the file has been checked. Exit status: 0 all good, 1 some trials have no
result, 2 the file or the call is wrong, 130 stopped by Ctrl-C and 143 by SIGTERM with trials left.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from craft.words import redact
from orchestrator.command import GOOD, NO, WIDTH, answer, joinable
from orchestrator.record.folder import SweepFolder
from orchestrator.start import Call, plan_sweep, run_file

if TYPE_CHECKING:
    from orchestrator.driver.outcome import SweepOutcome
    from orchestrator.plan.plan import Plan

EXAMPLES = """\
examples:
  python -m orchestrator.run sweeps/ranks.yaml --plan
      what would run, and what each configuration costs; nothing is trained
  python -m orchestrator.run sweeps/ranks.yaml
      run it; the record goes to mlflow.db here, all else to runs/ranks/
  python -m orchestrator.run sweeps/ranks.yaml --resume
      continue after Ctrl-C, a crash or a reboot; finished trials are kept
  python -m orchestrator.run sweeps/ranks.yaml --resume --retry-failed
      the same, and run failed trials again, whatever they failed by
  python -m orchestrator.run sweeps/ranks.yaml --set 'seeds=[0,1,2,3,4]' --resume
      extend it: only the new seeds run
  python -m orchestrator.run sweeps/ranks.yaml --name quick --set training.train_examples=200 --set space.1.learning_rate=2e-3
      a variant under its own name; space.1 is the second method block
  python -m orchestrator.run sweeps/glue/minilm.yaml --set data.root=DATA
      GLUE from files (DATA/glue/cola/train.parquet, ...) instead of the hub
  python -m orchestrator.run sweeps/glue/roberta_base.yaml --address auto --tracking-uri http://tracker:5000
      on a Ray cluster, recorded by a shared MLflow server

exit status: 0 all good; 1 some trials failed or are missing; 2 the sweep file or the call is wrong;
130 stopped by Ctrl-C, 143 by SIGTERM (within 15 s; trials keep their last checkpoints, --resume continues)
"""


def parser() -> argparse.ArgumentParser:
    """Returns the command line's flags."""
    flags = argparse.ArgumentParser(
        prog="python -m orchestrator.run",
        description="Run a sweep over fine-tuning methods and show its accuracy-against-parameters front.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("sweep", metavar="SWEEP.yaml", help="the sweep file")
    flags.add_argument("--plan", action="store_true", help="print configurations, counts and costs, and stop")
    flags.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY.PATH=VALUE",
        action="append",
        default=[],
        help="change one value of the file; VALUE is YAML, list items go by index (space.0.dropout=0.1); repeatable",
    )
    flags.add_argument("--resume", action="store_true", help="continue the sweep of this name (or start it, if there is none)")
    flags.add_argument(
        "--as-written",
        action="store_true",
        help="with --resume: ignore what --set and --tracking-uri of earlier sessions changed",
    )
    flags.add_argument(
        "--retry-failed",
        action="store_true",
        help="with --resume: run every failed trial again, from its last checkpoint. --resume alone already does so where the "
        "machine was at fault (memory, model, data, a crash), and leaves alone what would fail again, as a loss that is not "
        "finite; this is for when you have changed what was wrong",
    )
    flags.add_argument(
        "--within", type=float, metavar="POINTS", help="enough is what is within so many points of the best (enough.within; 1)"
    )
    flags.add_argument("--name", help="the sweep's name, instead of the file's")
    flags.add_argument(
        "--storage", metavar="FOLDER|URI", help="where runs are kept, instead of runs/; checkpoints alone go to a URI"
    )
    flags.add_argument("--tracking-uri", metavar="URI", help="the MLflow store, instead of the file's (sqlite:///mlflow.db)")
    flags.add_argument(
        "--address", type=joinable, help="a Ray cluster to join (auto, HOST:6379); this machine alone if not given"
    )
    flags.add_argument("--max-concurrent", type=_positive, metavar="N", help="trials at once, at most")
    flags.add_argument("--cpus", type=_positive, metavar="N", help="cores of this machine to use; all if not given")
    loudness = flags.add_mutually_exclusive_group()
    loudness.add_argument("--quiet", action="store_true", help="print errors only")
    loudness.add_argument("--verbose", action="store_true", help="print a line for each evaluation too")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    return answer(parser(), arguments, lambda flags, _: _main(flags, call_of(flags, arguments)))


def call_of(flags: argparse.Namespace, arguments: Sequence[str]) -> Call:
    """Returns what the flags ask."""
    names = (
        "within",
        "name",
        "storage",
        "tracking_uri",
        "resume",
        "as_written",
        "retry_failed",
        "address",
        "max_concurrent",
        "cpus",
    )
    return Call(
        flags.sweep,
        tuple(flags.overrides),
        verbosity="quiet" if flags.quiet else "verbose" if flags.verbose else "normal",
        again=_again(arguments),
        **{name: getattr(flags, name) for name in (*names, "max_concurrent", "cpus")},
    )


def _main(flags: argparse.Namespace, call: Call) -> int:
    console = Console(file=sys.stdout, quiet=flags.quiet, highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    if flags.plan:
        show_plan(plan_sweep(call, console), call)
        return GOOD
    outcome = run_file(call, console)
    if outcome.trouble:
        Console(stderr=True, highlight=False, markup=False).print(outcome.trouble)
    return exit_status(outcome)


def show_plan(plan: Plan, call: Call) -> None:
    """Prints what would run and what it costs; with `--resume` the time of what is left."""
    from orchestrator.plan.data_lines import data_lines
    from orchestrator.plan.gpu_shares import usable_gpus
    from orchestrator.plan.table import print_plan
    from orchestrator.plan.workload import planned_steps, remaining_steps, scored_line, split_examples
    from orchestrator.review.forecast import time_line
    from orchestrator.state.log import read_state

    # A file or a pipe has no width to keep to: rows stay whole there, so that they can be searched.
    labels = [len(configuration.label) for configuration in plan.configurations]
    wide = None if sys.stdout.isatty() else max(WIDTH, max(labels, default=40) + 90)
    screen = Console(file=sys.stdout, highlight=False, width=wide)
    examples = split_examples(plan.sweep)
    steps = planned_steps(plan, examples)
    print_plan(plan, screen, steps, [] if call.address else usable_gpus())
    for line, style in data_lines(plan):
        screen.print(line, markup=False, soft_wrap=True, style=style)
    entries = read_state(SweepFolder(plan.sweep.folder).record).entries if call.resume else {}
    settled = {key for key, entry in entries.items() if entry.result is not None and entry.result.settled}
    if settled:
        ended = sum(all(key in settled for key in job.keys) for job in plan.jobs)
        screen.print(f"{ended} of {len(plan.jobs)} trainings have ended already", markup=False)
    share = remaining_steps(plan, steps, settled) / max(1, sum(steps.values()))
    for line in (scored_line(plan.sweep, examples), "" if call.address or not share else time_line(plan, share)):
        if line:
            screen.print(line, markup=False, soft_wrap=True)


def exit_status(outcome: SweepOutcome) -> int:
    """Returns the exit status. A budget that is used up is a good end, a signal with work left is not."""
    if outcome.signal is not None and (outcome.left or outcome.open):
        return 128 + outcome.signal
    good = outcome.complete or (outcome.spent is not None and not outcome.ended("failed"))
    return GOOD if good and not outcome.trouble else NO


def _again(arguments: Sequence[str]) -> str:
    """Returns the command that continues what these arguments began; a job script names its own in CRAFT_CONTINUE."""
    if "CRAFT_CONTINUE" in os.environ:
        return redact(os.environ["CRAFT_CONTINUE"])
    resume = [] if "--resume" in arguments else ["--resume"]
    # The log remembers what is to be run again; once more would run again what has failed since.
    arguments = [argument for argument in arguments if argument != "--retry-failed"]
    return redact(shlex.join(["python", "-m", "orchestrator.run", *arguments, *resume]))


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}; a whole number from 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
