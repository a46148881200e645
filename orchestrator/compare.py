"""`python -m orchestrator.compare SWEEP_A SWEEP_B` says in a plain sentence whether one sweep is better than the other.

It compares two configurations over the tasks and seeds that both finished. Trials of one task and seed saw the same examples in
both sweeps, so their scores are paired, and the interval is that of the difference. By default the best configuration of each
sweep is taken, by the search score: the reported scores, which are compared, decide nothing. Sweeps whose numbers mean
different things (another model, protocol or other data) are not compared unless the caller asks for it.

Exit status: 0 compared, whatever the verdict; 1 nothing to compare; 2 the call is wrong, or the sweeps do not compare.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.command import answer, flags_for
from orchestrator.results.intervals import Comparison, Scores, compare, interval
from orchestrator.results.summary import Entry, Summary
from orchestrator.review.front_words import full_label, shown
from orchestrator.review.past_sweep import PastSweep, find_sweep
from orchestrator.review.pick import NothingMeets, pick

DESPITE = ("model", "protocol", "data")
DATA_FACTS = ("data_fingerprint", "train_examples", "search_examples", "reported_examples")

EXAMPLES = """\
The difference is that of the reported scores, first minus second, over what both configurations finished, with a 95 % t
interval over the seeds: a seed's tasks share its luck, so each seed counts once, with its mean over the tasks. If the interval
holds zero, no difference is shown. That does not mean that there is none: more seeds narrow the interval
(--set seeds=[0,1,2,3,4] --resume).

examples:
  python -m orchestrator.compare new old
      the best configuration of each, best by the search score
  python -m orchestrator.compare new old --configuration-a 'CRAFT 64, q v' --configuration-b 'LoRA r8, q v'
      two that you name, by label or id, or by a rule: knee, smallest-within:1, under:70000
  python -m orchestrator.compare tuesday monday --each
      every configuration that both have under one label: what did the change in code or settings do?
  python -m orchestrator.compare large small --despite model
      another model is the question itself; likewise --despite protocol, --despite data
  python -m orchestrator.compare new runs/old --metric f1 --tracking-uri http://tracker:5000
      `new` from a shared store, `old` from a folder, by another metric

exit status: 0 compared, whatever the verdict; 1 nothing to compare; 2 the call is wrong, or the sweeps do not compare
"""


class NotComparable(ValueError):
    """The sweeps' numbers mean different things."""


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
    """The command line's flags."""
    about = "Compare two sweeps seed by seed: is one better, by how much, and how sure is that?"
    flags = flags_for("compare", about, EXAMPLES)
    flags.add_argument("first", metavar="SWEEP_A", help="a sweep's name, or its folder runs/NAME")
    flags.add_argument(
        "second", metavar="SWEEP_B", help="the one it is compared with; may be the same, with other configurations"
    )
    flags.add_argument("--configuration-a", metavar="WHICH", default="best", help="of SWEEP_A: an id, a label or a rule (best)")
    flags.add_argument("--configuration-b", metavar="WHICH", default="best", help="of SWEEP_B: the same (best)")
    flags.add_argument("--each", action="store_true", help="every configuration that both sweeps have under the same label")
    flags.add_argument("--metric", default="score", help="what is compared: score, or a metric such as f1 (score)")
    flags.add_argument(
        "--despite", choices=DESPITE, action="append", default=[], help="compare although this differs; repeatable"
    )
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    return answer(parser(), arguments, _main)


def _main(given: argparse.Namespace, console: Console) -> None:
    first = find_sweep(given.first, given.tracking_uri, given.storage)
    second = find_sweep(given.second, given.tracking_uri, given.storage)
    pairs = list(_each(first, second, given.metric)) if given.each else [_chosen(given, first, second)]
    for one, other in pairs:
        _refuse_unlike(one, other, given.despite)
    compared = [(one, other, compare(one.scores, other.scores)) for one, other in pairs]
    if not any(comparison.difference.n for _, _, comparison in compared):
        raise NothingMeets(_nothing_shared(given.metric, pairs))
    for kind in dict.fromkeys(given.despite):
        if any(differences(one, other).get(kind) for one, other in pairs):
            console.print(f"The {kind} differs: this compares more than the methods.")
    unit = "points" if given.metric == "score" else given.metric
    if given.each:
        console.print(_table(compared))
        console.print(_in_all(compared))
    else:
        _tell(*compared[0], unit, console)


def differences(one: Side, other: Side) -> dict[str, str]:
    """The differences, in words, that give the scores of two sides different meanings, by kind: `model`, `protocol`, `data`."""
    found = {}
    models = [
        f"{side.record.sweep.model}{f' at {side.record.sweep.revision}' if side.record.sweep.revision else ''}"
        for side in (one, other)
    ]
    if models[0] != models[1]:
        found["model"] = f"{models[0]} against {models[1]}"
    protocols = [side.record.sweep.protocol for side in (one, other)]
    if protocols[0] != protocols[1]:
        found["protocol"] = f"{protocols[0]} against {protocols[1]}"
    facts = [_data(side) for side in (one, other)]
    lines = [
        f"{task}: {name.replace('_', ' ')} {_short(facts[0][task][name])} against {_short(facts[1][task][name])}"
        for task in facts[0]
        if task in facts[1]
        for name in DATA_FACTS
        if name in facts[0][task] and name in facts[1][task] and facts[0][task][name] != facts[1][task][name]
    ]
    generation = [side.record.sweep.generation for side in (one, other)]
    if generation[0] != generation[1] and any(task.startswith("commonsense") for task in facts[0]):
        lines.append("how answers are generated and scored (data.generation)")
    if lines:
        found["data"] = "; ".join(lines)
    return found


def _refuse_unlike(one: Side, other: Side, despite: Sequence[str]) -> None:
    found = {kind: what for kind, what in differences(one, other).items() if kind not in despite}
    if found:
        lines = [f"{one.name} and {other.name} do not compare:"]
        lines += [f"  {kind}: {what}" for kind, what in found.items()]
        flags = " ".join(f"--despite {kind}" for kind in found)
        raise NotComparable("\n".join([*lines, f"If that is the question itself, add {flags}"]))


def _chosen(given: argparse.Namespace, first: PastSweep, second: PastSweep) -> tuple[Side, Side]:
    one = _side(first, given.configuration_a, "--configuration-a", given.metric)
    other = _side(second, given.configuration_b, "--configuration-b", given.metric)
    if first.where == second.where and one.summary.configuration == other.summary.configuration:
        raise ValueError(f"{one.name} would be compared with itself; name two by --configuration-a and --configuration-b")
    return one, other


def _side(record: PastSweep, which: str, flag: str, metric: str) -> Side:
    try:
        chosen = pick(which, record.summaries, record.sweep.objectives)
    except NothingMeets as error:
        raise NothingMeets(f"{record.name}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{record.name}: {str(error).replace('--pick', flag)}") from error
    return Side(record, chosen.summary, _scores(record, chosen.summary, metric), chosen.reason)


def _each(first: PastSweep, second: PastSweep, metric: str) -> Iterator[tuple[Side, Side]]:
    if first.where == second.where:
        raise ValueError("--each compares two sweeps; these are one")
    others = {full_label(one): one for one in second.summaries}
    shared = [(one, others[full_label(one)]) for one in first.summaries if full_label(one) in others]
    if not shared:
        labels = [", ".join(sorted(full_label(one) for one in record.summaries)[:6]) for record in (first, second)]
        raise NothingMeets(
            f"no configuration has the same label in both: {first.name} has {labels[0]}; {second.name} has {labels[1]}"
        )
    for one, other in shared:
        yield (
            Side(first, one, _scores(first, one, metric), "of the same label"),
            Side(second, other, _scores(second, other, metric), "of the same label"),
        )


def _scores(record: PastSweep, summary: Summary, metric: str) -> Scores:
    """A configuration's finished trials by (task, seed)."""
    entries = record.trials(summary.configuration)
    finished = [(entry, entry.result) for entry in entries if entry.result is not None and entry.result.status == "finished"]
    return {(entry.task, entry.seed): result.metrics[metric] for entry, result in finished if metric in result.metrics}


def _data(side: Side) -> dict[str, dict[str, str]]:
    """The facts on record about each task's data."""
    finished = [
        (entry, entry.result) for entry in side.entries if entry.result is not None and entry.result.status == "finished"
    ]
    return {
        entry.task: {name: str(result.facts[name]) for name in DATA_FACTS if name in result.facts} for entry, result in finished
    }


def _tell(one: Side, other: Side, comparison: Comparison, unit: str, console: Console) -> None:
    console.print(comparison.sentence(one.name, other.name, unit))
    for task in comparison.tasks if len(comparison.tasks) > 1 else ():
        gaps = [
            one.scores[key] - other.scores[key] for key in sorted(one.scores.keys() & other.scores.keys()) if key[0] == task
        ]
        gap = interval(gaps)
        ends = f"{gap.low:+.2f} to {gap.high:+.2f}, {gap.n} seeds" if gap.n > 1 else "one seed"
        console.print(f"  {task}: {gap.mean:+.2f} ({ends})")
    for side in (one, other):
        sizes = f"{side.summary.value('trainable_parameters'):,.0f} trainable parameters"
        score = shown(side.summary, "score")
        console.print(f"{side.name}: {side.reason}; {sizes}; score {score}")
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
    same = {entry.key for entry in one.entries if entry.key} & {entry.key for entry in other.entries if entry.key}
    if same:
        yield f"{len(same)} of the trials are the very same (equal content): both sweeps ran them."
    for side in (one, other):
        if not side.summary.complete:
            done = f"{side.summary.finished} of {side.summary.planned} trials have finished"
            yield f"{side.name} is incomplete: {'it ran only to choose another' if side.summary.screened else done}."


def _table(compared: Sequence[tuple[Side, Side, Comparison]]) -> Table:
    first, second = compared[0][0].record, compared[0][1].record
    table = Table(title=escape(f"{first.name} minus {second.name}"), title_justify="left", header_style="bold", pad_edge=False)
    for column, place in (
        ("configuration", "left"),
        ("difference", "right"),
        ("95 % interval", "right"),
        ("seeds", "right"),
        ("", "left"),
    ):
        table.add_column(column, justify="right" if place == "right" else "left")
    for one, _, comparison in compared:
        gap = comparison.difference
        ends = f"{gap.low:+.2f} to {gap.high:+.2f}" if math.isfinite(gap.half) else "–"
        mean = f"{gap.mean:+.2f}" if gap.n else "–"
        table.add_row(escape(full_label(one.summary)), mean, ends, str(gap.n), _verdict(comparison, first.name, second.name))
    return table


def _verdict(comparison: Comparison, first: str, second: str) -> str:
    if comparison.difference.low > 0:
        return escape(f"{first} is better")
    if comparison.difference.high < 0:
        return escape(f"{second} is better")
    return "no difference is shown" if comparison.difference.n > 1 else "too few seeds"


def _in_all(compared: Sequence[tuple[Side, Side, Comparison]]) -> str:
    better = sum(comparison.difference.low > 0 for _, _, comparison in compared)
    worse = sum(comparison.difference.high < 0 for _, _, comparison in compared)
    first, second = compared[0][0].record.name, compared[0][1].record.name
    text = f"{len(compared)} configuration(s) in both: {first} is better in {better}, {second} in {worse}"
    if better + worse < len(compared):
        text += f", no difference is shown in {len(compared) - better - worse}"
    text += "."
    if len(compared) > 1:
        text += f" Of {len(compared)} comparisons about {0.05 * len(compared):.1f} would show a difference by chance alone."
    return text


def _nothing_shared(metric: str, pairs: Sequence[tuple[Side, Side]]) -> str:
    one, other = pairs[0]

    def keys(side: Side) -> str:
        return ", ".join(f"{task} seed {seed}" for task, seed in sorted(side.scores)[:6]) or f"none with {metric}"

    return (
        f"nothing to compare: {one.name} and {other.name} share no finished task and seed. {one.record.name} has {keys(one)}; "
        f"{other.record.name} has {keys(other)}"
    )


def _short(value: str) -> str:
    return value if len(value) <= 16 else f"{value[:12]}…"


if __name__ == "__main__":
    sys.exit(main())
