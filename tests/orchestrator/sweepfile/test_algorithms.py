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
    assert (sweep.chosen or "").startswith(f"{chosen}, because")
    assert sweep.search.configurations == (None if chosen == "grid" else trials)


def test_names_alone_are_not_searched_by_gaussian_processes(tmp_path: Path) -> None:
    text = FILE.format(
        rates="1e-3, projections: {values: [[q], [v], [q, v]]}", more="search: {algorithm: auto, configurations: 2}\n"
    )
    (tmp_path / "sweep.yaml").write_text(text.replace("{values: [1, 2, 4, 8]}", "4"))
    assert str(load_sweep(tmp_path / "sweep.yaml").chosen).startswith("tpe, because what is searched are names alone")


def test_a_set_replaces_auto(tmp_path: Path) -> None:
    more = "search: {algorithm: auto, configurations: 9}\n"
    sweep = load(tmp_path, more, overrides=("search.algorithm=tpe", "scheduler.name=promotion", "scheduler.grace=2"))
    assert (sweep.search.algorithm, sweep.scheduler.name, sweep.scheduler.grace, sweep.chosen) == (
        "tpe",
        "promotion",
        2.0,
        None,
    )
