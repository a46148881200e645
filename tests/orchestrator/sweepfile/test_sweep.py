"""The sweep file: what it means, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.sweepfile.yaml_source import MAX_BYTES

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


def write(folder: Path, text: str) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(text)
    return path


def load(folder: Path, text: str, *overrides: str) -> Sweep:
    return load_sweep(write(folder, text), overrides)


def refused(folder: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(SweepError) as error:
        load(folder, text, *overrides)
    return error.value.lines


def test_a_good_file_says_what_it_says(tmp_path: Path) -> None:
    sweep = load(tmp_path, GOOD)
    assert sweep.training.learning_rate == 1e-4  # YAML 1.1 would read the text "1e-4"
    assert sweep.seeds == (0, 1)
    assert sweep.objectives == {"score": "maximize", "trainable_parameters": "minimize"}
    craft, lora = sweep.blocks
    assert craft.dimensions["ranks"].values == (["all", 16, 16], ["all", 32, 32])  # type: ignore[union-attr]
    assert lora.dimensions["rank"].values == (1, 4)  # type: ignore[union-attr]  # `r` is LoRA's own word for it
    assert lora.dimensions["learning_rate"].values == (1e-3, 3e-3)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1e-4", 1e-4),
        ("1E3", 1000.0),
        ("3.0e-3", 3e-3),
        (".5", 0.5),
        ("70_000", 70_000),
        ("0.1", 0.1),
        ("010", 10),
    ],
)
def test_numbers_are_what_a_person_means(tmp_path: Path, written: str, meant: float) -> None:
    text = GOOD + f"constraints: {{trainable_parameters: {{max: {written}}}}}\n"
    assert load(tmp_path, text).constraints["trainable_parameters"].max == meant


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "2026-11-21", "12:30", "0x10"])
def test_words_that_yaml_would_turn_into_something_else_stay_words(tmp_path: Path, word: str) -> None:
    assert load(tmp_path, GOOD, f"revision={word}").revision == word


def test_the_effective_file_loads_to_an_equal_sweep(tmp_path: Path) -> None:
    sweep = load(tmp_path, GOOD + "task_training: {toy: {epochs: 2}}\n")
    (tmp_path / "effective.yaml").write_text(sweep.to_yaml())
    again = load_sweep(tmp_path / "effective.yaml")
    assert again.model_dump() == sweep.model_dump()
    assert again.training_for("toy/sentiment", {}) == sweep.training_for("toy/sentiment", {})


def test_a_choice_wins_over_the_task_and_the_task_over_its_suite(tmp_path: Path) -> None:
    sweep = load(tmp_path, GOOD + "task_training: {toy: {epochs: 2, batch_size: 4}, toy/sentiment: {epochs: 5}}\n")
    settings = sweep.training_for("toy/sentiment", {"learning_rate": 0.5})
    assert (settings.epochs, settings.batch_size, settings.learning_rate) == (5, 4, 0.5)
    assert sweep.training_for("toy/paraphrase", {}).epochs == 2
    assert sweep.training_for("glue/rte", {}).epochs == 1


def test_local_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    sweep = load(tmp_path, GOOD, "model=base", "data.root=./here/../data", "storage=out")
    assert sweep.model == str(tmp_path / "base")
    assert sweep.data.root == str(tmp_path / "data")
    assert sweep.folder == tmp_path / "out" / "small"
    assert load(tmp_path, GOOD).model == "sentence-transformers/all-MiniLM-L6-v2"


def test_overrides_change_one_value_each(tmp_path: Path) -> None:
    sweep = load(
        tmp_path, GOOD, "training.epochs=3", "space.1.r.values.0=2", "space.0.dropout={values: [0.0, 0.1]}", "resources.cpu=2"
    )
    assert sweep.training.epochs == 3
    assert sweep.training.learning_rate == 1e-4
    assert sweep.blocks[1].dimensions["rank"].values == (2, 4)  # type: ignore[union-attr]
    assert sweep.blocks[0].dimensions["dropout"].values == (0.0, 0.1)  # type: ignore[union-attr]
    assert sweep.resources.cpu == 2


@pytest.mark.parametrize(
    "assignment",
    [
        "training.epochs=true",
        "training.max_length=true",
        "training.evaluate_every=false",
        "task_training.toy/sentiment.batch_size=true",
        "seeds=[true]",
        "search.seed=true",
        "budget.trials=true",
        "constraints.trainable_parameters.max=true",
        "resources.cpu=true",
        "resources.memory=true",
        "resources.custom.fast_disk=true",
        "data.search_fraction=true",
        "data.generation.beams=true",
        "space.0.ranks=[all, true, 8]",
        "space.1.rank=true",
        "space.1.rank.values=[8, true]",
        "space.1.rank={min: true, max: 8}",
        "space.1.dropout=false",
        "space.1.learning_rate=true",
        "space.1.sizes=true",
        "space.1={method: peft, peft_type: LORA, config: {r: true}}",
        "space.1={method: peft, peft_type: LORA, config: {layers_to_transform: [0, true]}}",
    ],
)
def test_true_is_no_number(tmp_path: Path, assignment: str) -> None:
    (line,) = refused(tmp_path, GOOD, assignment)
    assert assignment.partition("=")[0].partition(".values")[0] in line
    assert "true" in line.lower() or "false" in line
    assert load(tmp_path, GOOD, "training.tf32=true", "measure.forgetting=true").training.tf32


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("epochs", "not of the form key.path=value"),
        ("=3", "not of the form key.path=value"),
        ("training..epochs=3", "not of the form key.path=value"),
        ("training.epoch=3", "--set training.epoch=3: training.epoch: unknown key 'epoch'. Did you mean 'epochs'?"),
        ("space.7.rank=3", "space is a list of 2; '7' is not one of its indices (0 to 1)"),
        ("space.x.rank=3", "'x' is not one of its indices"),
        ("name.first=3", "name is 'small', which has nothing inside"),
        ("training.epochs=[1", "not YAML"),
        ("training.epochs=many", "--set training.epochs=many: training.epochs: got 'many'; must be a number"),
        ("space=[]", "--set space=[]: space: is empty"),
    ],
)
def test_a_malformed_override_is_refused(tmp_path: Path, assignment: str, said: str) -> None:
    lines = refused(tmp_path, GOOD, assignment)
    assert any(line.startswith("--set") and said in line for line in lines), lines


def test_all_mistakes_are_told_at_once_in_order_with_their_lines(tmp_path: Path) -> None:
    text = GOOD.replace("tasks: [toy/sentiment]", "tasks: [toy/sentimant]").replace("epochs: 1", "epoch: 1")
    text = text.replace("method: lora", "method: lorra") + "protocol: honst\n"
    lines = refused(tmp_path, text)
    path = tmp_path / "sweep.yaml"
    assert [line.split(": ")[0:2] for line in lines] == [
        [f"{path}:3", "tasks.0"],
        [f"{path}:5", "training.epoch"],
        [f"{path}:9", "space.1.method"],
        [f"{path}:12", "protocol"],
    ]
    for line, nearest in zip(lines, ("toy/sentiment", "epochs", "lora", "honest"), strict=True):
        assert f"Did you mean {nearest!r}?" in line


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n" for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


HOSTILE: dict[str, tuple[str, str]] = {
    # What is not a sweep file at all.
    "empty": ("", "is empty; a sweep file has at least"),
    "a list": ("- name: small\n", "a sweep file is a mapping"),
    "not yaml": ("name: [small\n", "not YAML"),
    "two documents": (GOOD + "---\n" + GOOD, "not YAML"),
    "control character": (GOOD.replace("small", "sm\x00all"), "control character"),
    # What YAML allows and a sweep file does not.
    "duplicate key": (GOOD + "name: again\n", "name: given twice, first at"),
    "number as key": (GOOD + "7: seven\n", "keys are words"),
    "python object": (
        changed("name: small", "name: !!python/object/apply:os.system [ls]"),
        "tag !!python/object/apply:os.system is refused",
    ),
    "merge key": (changed("training: {", "training: {<<: {epochs: 2}, "), "unknown key '<<'"),
    "alias bomb": (GOOD + BOMB, "once its aliases are written out"),
    "alias of itself": (GOOD + "data: &d {custom: *d}\n", "levels deep"),
    "deep nesting": (GOOD + "data: " + "[" * 5000 + "]" * 5000, "more than 24 levels deep"),
    "huge file": (GOOD + "# " + "x" * MAX_BYTES, "larger than 256 KiB"),
    "huge number": (changed("epochs: 1", "epochs: " + "9" * 5000), "a number of 5000 digits"),
    "not a number": (changed("epochs: 1", "epochs: .nan"), "not a finite number"),
    # Names that would leave the sweep's folder.
    "name climbs": (changed("name: small", "name: ../../etc/cron.d"), "it names the sweep's folder"),
    "name is hidden": (changed("name: small", "name: .ssh"), "it names the sweep's folder"),
    "name with a line break": (changed("name: small", 'name: "a\\nb"'), "it names the sweep's folder"),
    "task climbs": (changed("toy/sentiment", "toy/../../sentiment"), "unknown task"),
    "custom task climbs": (GOOD + "data: {custom: {../x: {train: a.csv, text: t, label: l}}}\n", "a task's name"),
    "model with a line break": (changed("sentence-transformers/all-MiniLM-L6-v2", '"a\\nb"'), "a hub id such as"),
    "password in the tracking address": (
        GOOD + "tracking: {uri: 'postgresql://me:hunter2@host/db'}\n",
        "holds a password; give it by MLFLOW_TRACKING_USERNAME",
    ),
    # Spaces that cannot be searched.
    "no space": (GOOD.split("space:")[0], "space: missing"),
    "no values": (changed("{values: [1, 4]}", "{values: []}"), "space.1.r.values: is empty, so the space is empty"),
    "misspelt values": (changed("{values: [1, 4]}", "{valeus: [1, 4]}"), "Did you mean 'values'?"),
    "values and range": (changed("{values: [1, 4]}", "{values: [1], min: 1, max: 2}"), "either values or a range"),
    "range under grid": (
        changed("{values: [1, 4]}", "{min: 1, max: 4}"),
        "a range has no end of values for grid to run",
    ),
    "range without end": (changed("{values: [1, 4]}", "{min: 1}"), "max is missing"),
    "range upside down": (changed("{values: [1, 4]}", "{min: 4, max: 1}"), "min 4 is larger than max 1"),
    "log from zero": (changed("{values: [1e-3, 3.0e-3]}", "{min: 0, max: 1, distribution: log_uniform}"), "needs min above 0"),
    "unknown distribution": (
        changed("{values: [1, 4]}", "{min: 1, max: 4, distribution: lognormal}"),
        "unknown distribution 'lognormal'",
    ),
    "fractions of a rank": (changed("{values: [1, 4]}", "{min: 1.5, max: 4.5}"), "must be a whole number"),
    "rank zero": (changed("{values: [1, 4]}", "{values: [0, 4]}"), "space.1.r.values.0: got 0; must be greater than 0"),
    "rank is a word": (changed("[all, 16, 16]", "[every, 16, 16]"), "space.0.ranks.values.0.0: got 'every'"),
    "two ranks": (changed("[all, 16, 16]", "[all, 16]"), "space.0.ranks.values.0"),
    "unknown parameter": (
        changed("r: {values: [1, 4]}", "ranks: {values: [1, 4]}"),
        "unknown key 'ranks' for method lora. Did you mean 'rank'?",
    ),
    "parameter twice": (changed("r: {values: [1, 4]}", "r: 1\n    rank: 2"), "the same parameter as rank"),
    "block without method": (changed("method: lora", "methode: lora"), "a method block names its method"),
    "block is a word": (changed("- method: lora", "- lora\n  - method: lora"), "a method block is a mapping"),
    # Values that are wrong.
    "no tasks": (changed("tasks: [toy/sentiment]", "tasks: []"), "tasks: is empty"),
    "task that is unknown, and promotion": (
        changed("toy/sentiment", "toy/sentimant") + "scheduler: {name: promotion}\n",
        "tasks.0: unknown task 'toy/sentimant'. Did you mean 'toy/sentiment'?",
    ),
    "task twice": (changed("tasks: [toy/sentiment]", "tasks: [toy/sentiment, toy/sentiment]"), "is given twice"),
    "tasks is a word": (changed("tasks: [toy/sentiment]", "tasks: toy"), "must be a list, as in [toy]"),
    "negative seed": (changed("seeds: [0, 1]", "seeds: [-1]"), "seeds are whole numbers from 0"),
    "seed twice": (changed("seeds: [0, 1]", "seeds: [1, 1]"), "each seed once"),
    "seed is true": (changed("seeds: [0, 1]", "seeds: [true]"), "got the seed true"),
    "batch of minus one": (changed("epochs: 1", "batch_size: -1"), "training.batch_size: got -1; must be greater than 0"),
    "unknown metric to bound": (GOOD + "constraints: {accuracy: {min: 90}}\n", "unknown metric 'accuracy'"),
    "empty constraint": (GOOD + "constraints: {adapter_bytes: {}}\n", "a constraint has max, min, or both"),
    "unknown objective": (GOOD + "objectives: {scor: maximize}\n", "unknown metric 'scor'. Did you mean 'score'?"),
    "objective without direction": (GOOD + "objectives: {score: up}\n", "allowed: maximize, minimize"),
    "unknown algorithm": (GOOD + "search: {algorithm: grdi}\n", "unknown algorithm 'grdi'. Did you mean 'grid'?"),
    "random without an end": (GOOD + "search: {algorithm: random}\n", "random needs the number of configurations"),
    "grid with configurations": (GOOD + "search: {algorithm: grid, configurations: 5}\n", "grid runs every combination"),
    "unknown scheduler": (GOOD + "scheduler: {name: promotionn}\n", "unknown scheduler 'promotionn'"),
    "nothing for promotion to judge": (
        changed("epochs: 1", "epochs: 4, evaluate_every: end") + "scheduler: {name: promotion}\n",
        "training.evaluate_every: promotion judges trials while they train",
    ),
    "word for epochs": (changed("epochs: 1", "evaluate_every: never"), "training.evaluate_every: got 'never'"),
    "several GPUs for one process": (GOOD + "resources: {gpu: 1.5}\n", "a trial trains on one GPU"),
    "no CPU": (GOOD + "resources: {cpu: 0}\n", "resources.cpu: got 0; must be greater than 0"),
    "PEFT's word": (GOOD + "  - {method: lora, target_modules: [q, v]}\n", "Did you mean 'projections'?"),
    "custom task without its suite": (
        GOOD.replace("[toy/sentiment]", "[faq]") + "data: {custom: {faq: {train: a.csv, text: t, label: l}}}\n",
        "Did you mean 'custom/faq'?",
    ),
    "custom file missing": (GOOD + "data: {custom: {mine: {train: nowhere.csv, text: t, label: l}}}\n", "nowhere.csv"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_malformed_or_hostile_file_is_refused_with_its_reason(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, said = HOSTILE[case]
    lines = refused(tmp_path, text)
    assert any(said in line for line in lines), lines
    assert all(line.startswith(str(tmp_path / "sweep.yaml")) for line in lines), lines
    assert "hunter2" not in "".join(lines)
    assert max(map(len, lines)) < 2000
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]


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


def test_a_custom_task_with_a_missing_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("text,label\ngood,1\nbad,0\n")
    text = (
        changed("[toy/sentiment]", "[custom/mine]")
        + f"data: {{custom: {{mine: {{train: {tmp_path}/mine.csv, text: body, label: label}}}}}}\n"
    )
    lines = refused(tmp_path, text)
    assert any("data.custom.mine" in line and "body" in line and "text, label" in line for line in lines), lines
    assert load(tmp_path, text.replace("text: body", "text: text")).task_names == ("custom/mine",)


def test_files_are_found_next_to_the_sweep_file_then_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    custom = "data: {custom: {mine: {train: mine.csv, text: text, label: label}}}\n"
    text = changed("[toy/sentiment]", "[custom/mine]") + custom
    (line,) = refused(tmp_path / "sub", text)
    assert f"data.custom.mine.train: no file mine.csv next to the sweep file ({tmp_path}/sub" in line
    assert f"nor in the current folder ({tmp_path})" in line
    for folder in (tmp_path, tmp_path / "sub"):
        (folder / "mine.csv").write_text("text,label\ngood,1\nbad,0\n")
        assert load(tmp_path / "sub", text).data.custom["mine"].train == str(folder / "mine.csv")


def test_names_of_shipped_sweeps_are_their_own() -> None:
    names = [load_sweep(path).name for path in SHIPPED]
    assert len(set(names)) == len(names)
