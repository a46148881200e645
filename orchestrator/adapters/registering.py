"""Makes adapters that were taken home versions of a registered model in the tracking store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from craft.results import RUN_FILE
from orchestrator.adapters.merging import RECORD_FILE, reads_pairs
from orchestrator.adapters.model_card import CARD_FILE
from orchestrator.adapters.taking import Taken, slug
from orchestrator.results.metrics import SIZE
from orchestrator.review.desired_run import headline
from orchestrator.review.past_sweep import PastSweep
from orchestrator.review.pick import titles
from orchestrator.tools.secrets import redact
from orchestrator.tracking.uri import resolve_uri


def register_adapters(
    record: PastSweep, adapters: Sequence[Taken], model: str, merged: bool, tracking_uri: str | None
) -> Iterator[str]:
    """Makes each adapter a version of the registered model `model`; for several tasks, of `model`-TASK. Yields lines about it.

    Raises:
        ValueError: the store is not known, or a task is answered in words, which cannot be served.
    """
    from orchestrator.tracking.registry import Candidate, find_trial, register

    uri = resolve_uri(tracking_uri) if tracking_uri else record.uri
    if uri is None:
        raise ValueError("the sweep's record keeps no passwords, so its tracking store is not known: give --tracking-uri")
    earned = titles(record.summaries, record.sweep.objectives, record.sweep.enough)
    for adapter in adapters:
        run = json.loads((adapter.folder / (RECORD_FILE if merged else RUN_FILE)).read_text(encoding="utf-8"))
        if run["kind"] == "generation":
            raise ValueError(
                f"{adapter.entry.trial.task} is answered in words; only classification and regression can be served. Leave "
                "--register out"
            )
        name = model if len(adapters) == 1 else f"{model}-{slug(adapter.entry.trial.task)}"
        candidate = Candidate(
            adapter.folder,
            name,
            pair=reads_pairs(run),
            labels=run["labels"] if run["kind"] == "classification" else ["value"],
            aliases=[alias for alias, configuration in earned.items() if configuration == adapter.entry.trial.configuration],
            tags=_tags(record, adapter, run),
            description=_describe(record, adapter),
        )
        registered = register(uri, find_trial(uri, record.name, adapter.entry.key), candidate)
        word = "registered as" if registered.new else "is registered already as"
        also = f", also called {', '.join(registered.aliases)}" if registered.aliases else ""
        yield f"{adapter.entry.trial.task}: {word} version {registered.version} of {registered.name}{also}"
        for alias, version in registered.moved.items():
            yield f"  {alias} was version {version} before"
        handle = (
            f"{registered.name}@{registered.aliases[0]}" if registered.aliases else f"{registered.name}/{registered.version}"
        )
        yield f"  MLFLOW_TRACKING_URI={redact(uri)} mlflow models serve -m 'models:/{handle}' --env-manager local"


def _describe(record: PastSweep, adapter: Taken) -> str:
    """Returns the configuration's score, interval and size, and the model card without its front matter."""
    summary = next(row for row in record.summaries if row.configuration == adapter.entry.trial.configuration)
    score = summary.bounds("score")
    numbers = {"score": score.mean, "score_low": score.low, "score_high": score.high, SIZE: summary.value(SIZE)}
    card = (adapter.folder / CARD_FILE).read_text(encoding="utf-8")
    return f"{headline(numbers)}\n\n{card.split('---', 2)[-1].strip()}"


def _tags(record: PastSweep, adapter: Taken, run: Mapping[str, Any]) -> dict[str, str]:
    trial = adapter.entry.trial
    tags = {"sweep": record.name, "configuration": trial.configuration, "label": trial.label, "key": trial.key}
    tags |= {"task": trial.task, "seed": str(trial.seed), "method": trial.method, "protocol": trial.protocol}
    tags |= {"model": run["spec"]["model"], "score": f"{run['metrics']['score']:.4f}", "picked": adapter.reasons[0]}
    return {f"craft.{name}": str(value)[:4000] for name, value in tags.items()}
