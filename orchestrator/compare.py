"""`python -m orchestrator.compare SWEEP_A SWEEP_B` says in a plain sentence whether one sweep is better than the other.

It compares two configurations over the tasks and seeds that both finished. Trials of one task and seed saw the same examples in
both sweeps, so their scores are paired, and the interval is that of the difference. By default the best configuration of each
sweep is taken, by the search score: the reported scores, which are compared, decide nothing. Sweeps whose numbers mean
different things (another model, protocol or other data) are not compared.

Exit status: 0 compared, whatever the verdict; 1 nothing to compare; 2 the call is wrong, or the sweeps do not compare.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from orchestrator.command import answer, flags_for
from orchestrator.results.intervals import Comparison, Scores, compare, interval
from orchestrator.results.luck import difference
from orchestrator.results.summary import Entry, Summary
from orchestrator.results.table import full_label, metric_column
from orchestrator.review.differing_rows import show_differing
from orchestrator.review.past_sweep import PastSweep, find_sweep
from orchestrator.review.pick import pick
from orchestrator.sweepfile.mistakes import NothingMeets

DATA_FACTS = ("data_fingerprint", "train_examples", "search_examples", "reported_examples")

EXAMPLES = """\
The difference is that of the reported scores, first minus second, over what both configurations finished, with a 95 % t
interval over the seeds: a seed's tasks share its luck, so each seed counts once, with its mean over the tasks. If the interval
holds zero, no difference is shown. That does not mean that there is none: more seeds narrow the interval
(--set 'seeds=[0,1,2,3,4]' --resume). Where credits of the examples are on record, the luck that a configuration has with them
for all its seeds is in the interval, which then is about new examples. The interval of one seed is over the examples alone.

examples:
  python -m orchestrator.compare longer ranks
      the best configuration of each, best by the search score
  python -m orchestrator.compare ranks ranks --configuration-a 'CRAFT 64, q k v o' --configuration-b 'LoRA r8, q v'
      two that you name, by label or id, or by a rule: knee, enough, under:70000
  python -m orchestrator.compare longer runs/ranks --metric accuracy --tracking-uri http://tracker:5000
      `longer` from a shared store, `ranks` from a folder, by a metric's name

exit status: 0 compared, whatever the verdict; 1 nothing to compare; 2 the call is wrong, or the sweeps do not compare
"""


@dataclass(frozen=True)
class Side:
    """One configuration of one sweep, with the scores that are compared."""

    record: PastSweep
    summary: Summary
    scores: Scores
    reason: str

    @property
    def name(self) -> str:
        return f"{full_label(self.summary)} ({self.record.name})"

    @property
    def entries(self) -> list[Entry]:
        return self.record.trials(self.summary.configuration)


def parser() -> argparse.ArgumentParser:
    """Returns the command line's flags."""
    about = "Compare two sweeps seed by seed: is one better, by how much, and how sure is that?"
    flags = flags_for("compare", about, EXAMPLES)
    flags.add_argument("first", metavar="SWEEP_A", help="a sweep's name, or its folder runs/NAME")
    flags.add_argument(
        "second", metavar="SWEEP_B", help="the one it is compared with; may be the same, with other configurations"
    )
    flags.add_argument("--configuration-a", metavar="WHICH", default="best", help="of SWEEP_A: an id, a label or a rule (best)")
    flags.add_argument("--configuration-b", metavar="WHICH", default="best", help="of SWEEP_B: the same (best)")
    flags.add_argument("--metric", default="score", help="what is compared: score, or a metric such as f1 (score)")
    flags.add_argument("--rows", metavar="FILE.csv", type=Path, help="also write the rows that are answered differently")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    return answer(parser(), arguments, _main)


def _main(flags: argparse.Namespace, console: Console) -> None:
    first = find_sweep(flags.first, flags.tracking_uri, flags.storage)
    second = find_sweep(flags.second, flags.tracking_uri, flags.storage)
    one = _side(first, flags.configuration_a, "--configuration-a", flags.metric)
    other = _side(second, flags.configuration_b, "--configuration-b", flags.metric)
    if first.where == second.where and one.summary.configuration == other.summary.configuration:
        raise ValueError(f"{one.name} would be compared with itself; name two by --configuration-a and --configuration-b")
    if unlike := list(_differences(one, other)):
        raise ValueError(
            "\n  ".join([f"{one.name} and {other.name} do not compare, their scores mean different things:", *unlike])
        )
    paired = flags.metric == "score"
    comparison = compare(one.scores, other.scores, difference(one.summary.credits, other.summary.credits) if paired else None)
    if not comparison.difference.n:
        raise NothingMeets(_nothing_shared(flags.metric, one, other))
    _tell(one, other, comparison, "points" if flags.metric == "score" else flags.metric, console)
    show_differing((one.name, first, one.entries), (other.name, second, other.entries), flags.rows, console)


def _differences(one: Side, other: Side) -> Iterator[str]:
    """Yields the differences that give the scores of two sides different meanings."""
    sweeps = one.record.sweep, other.record.sweep
    models, protocols = [(sweep.model, sweep.revision) for sweep in sweeps], [sweep.protocol for sweep in sweeps]
    if models[0] != models[1]:
        yield "model: " + " against ".join(" at ".join(filter(None, model)) for model in models)
    if protocols[0] != protocols[1]:
        yield f"protocol: {protocols[0]} against {protocols[1]}"
    facts = [_data(side) for side in (one, other)]
    for task in sorted(facts[0].keys() & facts[1].keys()):
        for name in sorted(facts[0][task].keys() & facts[1][task].keys()):
            values = [found[task][name] for found in facts]
            if values[0] != values[1]:
                yield f"data of {task}: {name.replace('_', ' ')} {values[0][:12]} against {values[1][:12]}"
    if sweeps[0].generation != sweeps[1].generation and any(task.startswith("commonsense") for task in facts[0]):
        yield "data: how answers are generated and scored (data.generation)"


def _side(record: PastSweep, which: str, flag: str, metric: str) -> Side:
    try:
        chosen = pick(which, record.summaries, record.sweep.objectives, record.sweep.enough)
    except NothingMeets as error:
        raise NothingMeets(f"{record.name}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{record.name}: {str(error).replace('--pick', flag)}") from error
    return Side(record, chosen.summary, _scores(record, chosen.summary, metric), chosen.reason)


def _scores(record: PastSweep, summary: Summary, metric: str) -> Scores:
    """Returns a configuration's finished trials by (task, seed)."""
    trials = [(entry, entry.finished) for entry in record.trials(summary.configuration)]
    return {(entry.task, entry.seed): one.metrics[metric] for entry, one in trials if one and metric in one.metrics}


def _data(side: Side) -> dict[str, dict[str, str]]:
    """Returns the recorded facts about each task's data."""
    known = {entry.task: result.facts for entry in side.entries if (result := entry.finished)}
    return {task: {name: str(facts[name]) for name in DATA_FACTS if name in facts} for task, facts in known.items()}


def _tell(one: Side, other: Side, comparison: Comparison, unit: str, console: Console) -> None:
    console.print(comparison.sentence(one.name, other.name, unit))
    for task in comparison.tasks if len(comparison.tasks) > 1 else ():
        gaps = [
            one.scores[key] - other.scores[key] for key in sorted(one.scores.keys() & other.scores.keys()) if key[0] == task
        ]
        gap = interval(gaps)
        ends = f"{gap.low:+.2f} to {gap.high:+.2f}, {gap.n} seeds" if gap.n > 1 else "one seed"
        console.print(f"  {task}: {gap.mean:+.2f} ({ends})")
    if comparison.luck is not None and comparison.difference.n > 1:
        few = "More examples" if 1.96 * math.sqrt(comparison.luck) > comparison.difference.half / math.sqrt(2) else "More seeds"
        console.print(f"{few} would tell more of this difference.")
    for side in (one, other):
        amount = f"{side.summary.value('trainable_parameters'):,.0f} trainable parameters"
        score = metric_column("score").text(side.summary)
        console.print(f"{side.name}: {side.reason}; {amount}; score {score}")
    for warning in _warnings(one, other, comparison):
        console.print(warning)


def _warnings(one: Side, other: Side, comparison: Comparison) -> Iterator[str]:
    if not math.isnan(comparison.p):
        yield f"Paired t test: p = {comparison.p:.2g}."
    counts = [len(side.record.summaries) for side in (one, other)]
    if counts[0] != counts[1] and "best" in one.reason and "best" in other.reason:
        yield f"Chosen among {counts[0]} and {counts[1]} configurations: the longer search had more chances to find a good one."
    if one.record.sweep.protocol == "customary":
        yield "Under the customary protocol the search saw the reported split, so the best of many is flattered by chance."
    for side in (one, other):
        if not side.summary.complete:
            done = f"{side.summary.finished} of {side.summary.planned} trials have finished"
            yield f"{side.name} is incomplete: {'it ran only to choose another' if side.summary.tunes else done}."


def _nothing_shared(metric: str, one: Side, other: Side) -> str:
    def keys(side: Side) -> str:
        return ", ".join(f"{task} seed {seed}" for task, seed in sorted(side.scores)[:6]) or f"none with {metric}"

    return (
        f"nothing to compare: {one.name} and {other.name} share no finished task and seed. {one.record.name} has {keys(one)}; "
        f"{other.record.name} has {keys(other)}"
    )


if __name__ == "__main__":
    sys.exit(main())
