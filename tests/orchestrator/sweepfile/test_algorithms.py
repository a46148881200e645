"""What `auto` stands for in a sweep file."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.sweep import Sweep

FILE = (
    "name: t\nmodel: m\ntasks: [toy/sentiment]\ntraining: {{epochs: 6}}\n"
    "space: [{{method: lora, rank: {{values: [1, 2, 4, 8]}}, learning_rate: {rates}}}]\n{more}"
)
VALUES, RANGE = "{values: [1e-4, 1e-3]}", "{min: 1e-5, max: 1e-2, distribution: log_uniform}"


def load(folder: Path, more: str, rates: str = RANGE, overrides: tuple[str, ...] = ()) -> Sweep:
    file = folder / "sweep.yaml"
    file.write_text(FILE.format(more=f"storage: {folder}\n{more}", rates=rates))
    return load_sweep(file, overrides)


@pytest.mark.parametrize(
    ("trials", "rates", "chosen"),
    [(8, VALUES, "grid"), (7, VALUES, "gp"), (8, RANGE, "gp"), (250, RANGE, "gp"), (251, RANGE, "tpe")],
)
def test_the_searcher_follows_from_the_space_and_the_trials(tmp_path: Path, trials: int, rates: str, chosen: str) -> None:
    sweep = load(tmp_path, f"search: {{algorithm: auto, configurations: {trials}}}\n", rates)
    assert sweep.search.algorithm == chosen
    assert sweep.chosen["search"].startswith(f"{chosen}, because")
    assert sweep.search.configurations == (None if chosen == "grid" else trials)


def test_names_alone_are_not_searched_by_gaussian_processes(tmp_path: Path) -> None:
    text = FILE.format(
        rates="1e-3, projections: {values: [[q], [v], [q, v]]}", more="search: {algorithm: auto, configurations: 2}\n"
    )
    (tmp_path / "sweep.yaml").write_text(text.replace("{values: [1, 2, 4, 8]}", "4"))
    assert load_sweep(tmp_path / "sweep.yaml").chosen["search"].startswith("tpe, because what is searched are names alone")


@pytest.mark.parametrize(
    ("more", "chosen", "grace"),
    [
        ("", "none", 1.0),
        ("seeds: [0, 1]\n", "promotion", 2.0),
        ("tasks: [toy/sentiment, toy/paraphrase]\n", "promotion", 2.0),
        ("seeds: [0, 1]\nreplication: {seeds: [2], tuned: [learning_rate]}\n", "none", 1.0),
        ("seeds: [0, 1]\nobjectives: {trainable_parameters: minimize}\n", "none", 1.0),
    ],
)
def test_the_scheduler_follows_from_what_a_trial_is(tmp_path: Path, more: str, chosen: str, grace: float) -> None:
    text = FILE.format(rates=RANGE, more="search: {algorithm: gp, configurations: 9}\nscheduler: auto\n" + more)
    if "tasks:" in more:
        text = text.replace("tasks: [toy/sentiment]\n", "")
    (tmp_path / "sweep.yaml").write_text(text)
    sweep = load_sweep(tmp_path / "sweep.yaml")
    assert (sweep.scheduler.name, sweep.scheduler.grace) == (chosen, grace)
    assert sweep.chosen["scheduler"].startswith(chosen)


def test_a_set_replaces_auto(tmp_path: Path) -> None:
    more, given = (
        "search: {algorithm: auto, configurations: 9}\nscheduler: auto\n",
        ("search.algorithm=tpe", "scheduler.name=promotion"),
    )
    sweep = load(tmp_path, more, overrides=(*given, "scheduler.grace=2"))
    assert (sweep.search.algorithm, sweep.scheduler.name, sweep.scheduler.grace, sweep.chosen) == ("tpe", "promotion", 2.0, {})
