"""The sweep file: what it means, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from craft.methods import METHODS
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.plain_yaml import Source, read_yaml
from orchestrator.sweepfile.settings import Budget
from tests.orchestrator.plans import toy_sweep

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "sweeps").rglob("*.yaml"))

GOOD = """\
name: small
model: sentence-transformers/all-MiniLM-L6-v2
tasks: [toy/sentiment]
seeds: [0, 1]
training: {epochs: 1, learning_rate: 1e-4}
space:
  - method: craft
    ranks: {values: [[all, 16, 16], [all, 32, 32]]}
  - method: lora
    r: {values: [1, 4]}
    learning_rate: {values: [1e-3, 3.0e-3]}
"""


def test_a_choice_wins_over_the_task_and_the_task_over_its_suite(tmp_path: Path) -> None:
    sweep = toy_sweep(tmp_path, GOOD + "task_training: {toy: {epochs: 2, batch_size: 4}, toy/sentiment: {epochs: 5}}\n")
    settings = sweep.training_for("toy/sentiment", {"learning_rate": 0.5})
    assert (settings.epochs, settings.batch_size, settings.learning_rate) == (5, 4, 0.5)
    assert sweep.training_for("toy/paraphrase", {}).epochs == 2
    assert sweep.training_for("glue/rte", {}).epochs == 1


def test_local_paths_become_absolute(here: Path) -> None:
    (here / "base").mkdir()
    (here / "mine.txt").write_text("Some text.")
    measure = "measure={forgetting: {text: mine.txt}}"
    sweep = toy_sweep(here, GOOD, "model=base", "data.root=./here/../data", "storage=out", "tasks=[commonsense]", measure)
    assert sweep.measure.model_dump(exclude_defaults=True) == {"forgetting": {"text": str(here / "mine.txt")}}
    assert sweep.model == str(here / "base")
    assert sweep.data.root == str(here / "data")
    assert sweep.folder == here / "out" / "small"
    assert toy_sweep(here, GOOD).model == "sentence-transformers/all-MiniLM-L6-v2"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b"name: \xff\xfe"), "not UTF-8"),
        (lambda path: None, "there is no such file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a file"),
    ],
)
def test_what_is_no_file_is_refused(tmp_path: Path, make: object, said: str) -> None:
    make(tmp_path / "sweep.yaml")  # type: ignore[operator]
    with pytest.raises(SweepError, match=said):
        load_sweep(tmp_path / "sweep.yaml")


def test_files_are_found_next_to_the_sweep_file_then_in_the_current_folder(here: Path) -> None:
    (here / "sub").mkdir()
    custom = "data: {custom: {mine: {train: mine.csv, text: text, label: label}}}\n"
    text = GOOD.replace("[toy/sentiment]", "[custom/mine]") + custom
    with pytest.raises(SweepError) as error:
        toy_sweep(here / "sub", text)
    assert f"data.custom.mine.train: no file mine.csv next to the sweep file ({here}/sub" in str(error.value)
    assert f"nor in the current folder ({here})" in str(error.value)
    for folder in (here, here / "sub"):
        (folder / "mine.csv").write_text("text,label\ngood,1\nbad,0\n")
        assert toy_sweep(here / "sub", text).data.custom["mine"].train == str(folder / "mine.csv")


def test_names_of_shipped_sweeps_are_their_own() -> None:
    names = [load_sweep(path).name for path in SHIPPED]
    assert len(set(names)) == len(names)


def test_every_method_that_runs_on_a_cpu_is_in_the_baselines_once() -> None:
    methods = [block.method for block in load_sweep(ROOT / "sweeps" / "baselines.yaml").blocks]
    assert sorted(methods) == sorted(name for name, row in METHODS.items() if row.requires is None and name != "peft")


def test_of_many_mistakes_twenty_are_named(tmp_path: Path) -> None:
    with pytest.raises(SweepError) as error:
        toy_sweep(tmp_path, GOOD + "".join(f"key{number}: 1\n" for number in range(3000)))
    lines = error.value.lines
    assert len(lines) == 21
    assert "sweep.yaml:12: key0: unknown key 'key0'" in lines[0]
    assert lines[-1] == "and 2,980 more"


MEANT: dict[str, Any] = {
    "yes": "yes",
    "off": "off",
    "true": True,
    "1e-4": 1e-4,
    "1E3": 1000.0,
    ".5": 0.5,
    "70_000": 70_000,
    "010": 10,
    "0x10": "0x10",
    "12:30": "12:30",
    "2026-11-21": "2026-11-21",
    "'3'": "3",
    "~": None,
    "": None,
    "[no, 1e3, {a: on}]": ["no", 1000.0, {"a": "on"}],
}


@pytest.mark.parametrize(("text", "seconds"), [("45s", 45), ("90min", 5400), ("1.5h", 5400), ("2 d", 172_800), ("3m", 180)])
def test_durations(text: str, seconds: float) -> None:
    assert Budget(wall_clock=text).wall_clock_seconds == seconds


@pytest.mark.parametrize("written", MEANT)
def test_two_ways_to_write_a_value_mean_the_same(tmp_path: Path, written: str) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(f"key: {written}\n")
    overridden = Source({}, {}, "none")
    overridden.override(f"key={written}")
    given = (read_yaml(file).content["key"], overridden.content["key"])
    assert given == (MEANT[written],) * 2


AUTO = "search: {{algorithm: auto, configurations: {trials}}}\nspace: [{{method: lora, {searched}}}]\n"
RANKS = "rank: {values: [1, 2, 4, 8]}, learning_rate: "
VALUES, RANGE = RANKS + "{values: [1e-4, 1e-3]}", RANKS + "{min: 1e-5, max: 1e-2, distribution: log_uniform}"
NAMES = "projections: {values: [[q], [v], [q, v]]}"


@pytest.mark.parametrize(
    ("trials", "searched", "chosen"),
    [
        (8, VALUES, "grid, because"),
        (7, VALUES, "gp, because"),
        (8, RANGE, "gp, because"),
        (250, RANGE, "gp, because"),
        (251, RANGE, "tpe, because"),
        (2, NAMES, "tpe, because what is searched are names alone"),
    ],
)
def test_the_searcher_follows_from_the_space_and_the_trials(tmp_path: Path, trials: int, searched: str, chosen: str) -> None:
    sweep = toy_sweep(tmp_path, AUTO.format(trials=trials, searched=searched))
    assert (sweep.chosen or "").startswith(f"{sweep.search.algorithm}, because")
    assert (sweep.chosen or "").startswith(chosen)
    assert sweep.search.configurations == (None if sweep.search.algorithm == "grid" else trials)
    own = toy_sweep(tmp_path, AUTO.format(trials=trials, searched=searched), "search.algorithm=tpe", "scheduler.name=promotion")
    assert (own.search.algorithm, own.scheduler.name, own.chosen) == ("tpe", "promotion", None)


def test_trials_of_a_block_may_be_stopped_where_they_alone_are_longer_than_the_grace(tmp_path: Path) -> None:
    space = "space: [{method: lora, task_training: {toy: {epochs: 9}}}]\n"
    text = GOOD.partition("space:")[0].replace("[0, 1]", "[0]") + "scheduler: {name: promotion, grace: 3}\n"
    assert toy_sweep(tmp_path, text + space).scheduler.grace == 3
