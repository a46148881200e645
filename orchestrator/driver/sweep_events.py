"""What the tracking store is told of the sweep as a whole: its start, its refused configurations and its end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from craft.methods import shown_method
from orchestrator.driver.outcome import SweepOutcome
from orchestrator.plan.configuration import Dropped
from orchestrator.plan.parameters import flatten
from orchestrator.record.folder import SweepFolder
from orchestrator.record.manifest import make_manifest
from orchestrator.results.front import marks
from orchestrator.results.summary import Summary

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan
    from orchestrator.record.tracker import Tracker


def begin(plan: Plan, tracker: Tracker, fingerprints: dict[str, str]) -> None:
    """Opens the sweep's record; every configuration that breaks a constraint is on record from then on, as infeasible.

    Args:
        fingerprints: of the data, by task.
    """
    sweep, rule = plan.sweep, plan.sweep.replication
    reported = rule.seeds if rule is not None and rule.tunes_apart else sweep.seeds
    tracker.sweep_started(
        {
            "model": sweep.model,
            "tasks": ",".join(sweep.tasks),
            "seeds": ",".join(map(str, reported)),
            **({"tuning_seeds": ",".join(map(str, sweep.seeds))} if reported is not sweep.seeds else {}),
            "objectives": json.dumps(sweep.objectives),
            "algorithm": sweep.search.algorithm,
            "scheduler": sweep.scheduler.name,
            "protocol": sweep.protocol,
            **({"compare": sweep.compare, "tuned": ",".join(rule.tuned)} if sweep.compare and rule else {}),
            "configurations": plan.wanted if plan.adaptive else len(plan.counts),
            "trials": plan.most_trials,
            "manifest": make_manifest(sweep.model_dump(mode="json"), seeds=reported, data=fingerprints),
            "sweep_yaml": SweepFolder(sweep.folder).effective.read_text(encoding="utf-8"),
        }
    )

    def infeasible(dropped: Dropped) -> None:
        one = dropped.configuration
        method = shown_method(one.method, one.parameters)
        parameters = {"method": method, **flatten(one.parameters), **flatten(one.training)}
        why = {"status": "infeasible", "complete": False, "error": dropped.reason}
        summary = {**one.counts.known(), **why, "method": method, "protocol": sweep.protocol}
        tracker.configuration_ended(one.id, one.label, parameters, summary)

    plan.on_refusal(infeasible)
    if not plan.adaptive:  # those that an adaptive plan dropped were tried out, not proposed
        for dropped in plan.dropped:
            infeasible(dropped)


def status_of(outcome: SweepOutcome) -> str:
    """The status under which the sweep's own run ends: `finished`, `interrupted` or `failed`."""
    if outcome.complete or outcome.spent:
        return "finished"
    return "interrupted" if outcome.interrupted or outcome.missing or outcome.open else "failed"


def closing_content(plan: Plan, summaries: Sequence[Summary], outcome: SweepOutcome) -> dict[str, Any]:
    """What the sweep's own run is given when it ends: the front, how many trials ended how."""
    return {
        **marks(summaries, plan.sweep.objectives),
        "trials_planned": len(plan.trials),
        "trials_done": len(outcome.finished),
        "trials_failed": len(outcome.failed),
        "trials_stopped": len(outcome.stopped),
        "trials_missing": len(outcome.missing) + len(outcome.interrupted),
        "seconds": outcome.seconds,
    }
