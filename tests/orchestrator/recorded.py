"""Results of one's own choosing without any training: in sweep folders, written as a sweep writes them, and as the trials and
configurations that are judged."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from craft.spec import RunSpec
from craft.trainer.checkpoint import write_folder
from orchestrator.driver.display import SweepOutcome
from orchestrator.plan.trial import Status, Trial, TrialResult, Why
from orchestrator.record.events import Ended, Event, Opened, SessionStarted, Wanted
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import Log, read_state
from orchestrator.record.state import Entry
from orchestrator.results.intervals import interval, sampling_reach
from orchestrator.results.summary import Summary

Scores = Mapping[tuple[str, int], tuple[float, float]]


def record(
    folder: Path,
    configurations: Mapping[str, tuple[int, Scores]],
    *,
    tasks: tuple[str, ...] = ("toy/sentiment",),
    seeds: tuple[int, ...] = (0, 1),
    model: str = "some/model",
    protocol: str = "honest",
    adapter: Path | None = None,
    file: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """A sweep's folder. `configurations` maps a label to its number of parameters and, by (task, seed), search and reported
    scores; trials that are not there have not finished. `file` has further keys of the sweep file, `facts` of all results."""
    folder.mkdir(parents=True)
    content = {"name": folder.name, "model": model, "tasks": list(tasks), "seeds": list(seeds), "protocol": protocol}
    trials, results = list[Trial](), list[Ended]()
    for number, (label, (size, scores)) in enumerate(configurations.items()):
        for at, task in enumerate(tasks):
            for seed in seeds:
                key = f"{number:08x}{at:04x}{seed:04x}"
                names = (key, f"{number:010x}", label, "lora", task, seed, protocol)
                trials.append(Trial(*names, {"method": "lora"}))
                if (task, seed) in scores:
                    search, score = scores[task, seed]
                    known = {"data_fingerprint": "f" * 64} | ({"adapter": str(adapter)} if adapter else {})
                    metrics = {"search_score": search, "score": score}
                    counts = {"trainable_parameters": size}
                    results.append(Ended(result=TrialResult(key, "finished", metrics, counts, facts=known | dict(facts or {}))))
    content |= {"space": [{"method": "lora", "rank": 1}]} | dict(file or {})
    (folder / "sweep.yaml").write_text(yaml.safe_dump(content))
    opened = Opened(sweep=content["name"], sweep_id=uuid.uuid5(uuid.NAMESPACE_URL, content["name"]).hex)
    started = SessionStarted(sweep=content, configurations=1, trainings=1)
    write_log(folder, opened, started, Wanted(keys=[trial.key for trial in trials], trials=trials), *results)
    return folder


def write_log(folder: Path, *events: Event) -> None:
    log = Log(SweepFolder(folder).record)
    log.append(*events)
    log.close()


def over_seeds(*scores: float, search: float | None = None, task: str = "toy/sentiment") -> Scores:
    """Scores of seeds 0, 1, ... on one task; the search score of each is the score itself, unless one is given for all."""
    return {(task, seed): (score if search is None else search, score) for seed, score in enumerate(scores)}


def write_adapter(folder: Path, config: Mapping[str, Any] | None = None) -> Path:
    """An adapter as a trial leaves it, without weights; `config` is PEFT's."""
    run = RunSpec(model="m", task="toy/sentiment", method="lora", parameters={"rank": 1})
    fields = {"spec": run.model_dump(mode="json"), "kind": "classification", "labels": ["no", "yes"], "facts": {}, "notes": []}
    fields |= {"counts": {"trainable_parameters": 100}, "metrics": {"score": 80.0}}

    def fill(to: Path) -> None:
        (to / "run.json").write_text(json.dumps(fields))
        if config is not None:
            (to / "adapter_config.json").write_text(json.dumps(config))

    return write_folder(folder, fill)


def printed(show: Callable[[Console], object], width: int = 300) -> str:
    """What is shown on a screen of this width."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    show(console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def results_of(sweep: Path | SweepOutcome) -> dict[str, TrialResult]:
    """The results of trials by key, in a sweep's folder or after a session."""
    state = read_state(SweepFolder(sweep).record) if isinstance(sweep, Path) else sweep.state
    return {key: entry.result for key, entry in state.entries.items() if entry.result is not None}


def made(
    name: str, size: float, scores: Mapping[tuple[str, int], float] | Iterable[float], method: str = "lora",
    examples: int = 0, chance: float = 0.0, **parameters: Any,
) -> Summary:  # fmt: skip
    """A complete configuration with these scores by task and seed, or by seed, on so many scored examples."""
    by_key = dict(scores) if isinstance(scores, Mapping) else {("toy/sentiment", seed): one for seed, one in enumerate(scores)}
    value = interval(by_key.values())
    counts = {"trainable_parameters": size, "seconds": 30.0}
    counts |= {"examples": float(examples), "random_guessing": chance} if chance else {}
    many, tasks = len(by_key), {task: value for task, _ in by_key}
    return Summary(name, name, method, parameters, {"score": value, "search_score": value}, tasks, counts, by_key, many, many,
                   0, 0, many, sampling=sampling_reach({"score": value.mean}, examples))  # fmt: skip


def entry(
    configuration: str, metrics: Mapping[str, float] | None, *, task: str = "toy", seed: int = 0, method: str = "lora",
    counts: Mapping[str, float] | None = None, facts: Mapping[str, Any] | None = None, status: Status = "finished",
    why: Why | None = None, wave: int = 1, **parameters: Any,
) -> Entry:  # fmt: skip
    """A trial that has ended with these metrics; without any it failed."""
    key = f"{configuration} {task} {seed}"
    status = "failed" if metrics is None else status
    result = TrialResult(key, status, dict(metrics or {}), dict(counts or {}), facts=dict(facts or {}))
    trial = Trial(key, configuration, configuration, method, task, seed, "honest", parameters, why or Why())
    return Entry(trial, result, "ended", wave=wave)
