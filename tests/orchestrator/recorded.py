"""Sweep folders with results of one's own choosing: written as a sweep writes them, without any training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from orchestrator.record.ledger import Ledger
from orchestrator.state.entry import TrialResult
from orchestrator.tools.journal import Journal

Scores = Mapping[tuple[str, int], tuple[float, float]]


def record(
    folder: Path,
    configurations: Mapping[str, tuple[int, Scores]],
    *,
    tasks: tuple[str, ...] = ("toy/sentiment",),
    seeds: tuple[int, ...] = (0, 1),
    model: str = "some/model",
    protocol: str = "honest",
    fingerprint: str = "f" * 64,
    adapter: Path | None = None,
) -> Path:
    """A sweep's folder. `configurations` maps a label to its number of parameters and, by (task, seed), search and reported
    scores; trials that are not there have not finished."""
    folder.mkdir(parents=True)
    content = {"name": folder.name, "model": model, "tasks": list(tasks), "seeds": list(seeds), "protocol": protocol}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(content | {"space": [{"method": "lora", "rank": 1}]}))
    journal, ledger = Journal(folder / "journal.jsonl"), Ledger(folder)
    for number, (label, (size, scores)) in enumerate(configurations.items()):
        for (task, seed), (search, score) in scores.items():
            key = f"{number:08x}{tasks.index(task):04x}{seed:04x}"
            names = {
                "key": key,
                "configuration": f"{number:010x}",
                "label": label,
                "method": "lora",
                "task": task,
                "seed": seed,
            }
            journal.append({"kind": "trial_started", "time": 0, "protocol": protocol, "params": {"method": "lora"}, **names})
            facts = {"data_fingerprint": fingerprint} | ({"adapter": str(adapter)} if adapter else {})
            metrics = {"search_score": search, "score": score}
            ledger.add(TrialResult(key, "finished", metrics, {"trainable_parameters": size}, facts=facts))
    journal.close()
    ledger.close()
    return folder


def over_seeds(*scores: float, search: float | None = None, task: str = "toy/sentiment") -> Scores:
    """Scores of seeds 0, 1, ... on one task; the search score of each is the score itself, unless one is given for all."""
    return {(task, seed): (score if search is None else search, score) for seed, score in enumerate(scores)}
