"""What `plan` says of a task's data: classes with their doubts, rows that are learnt and scored, lengths in tokens."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from craft.models.loading import load_tokenizer
from craft.scoring.encoding import encode_split
from craft.settings import CustomTask, DataSettings
from craft.tasks import find_task
from craft.tasks.metrics import compute_metrics
from craft.tasks.prompts import encode, shorten
from craft.tasks.splits import load_splits
from craft.trainer.probe import Speed
from orchestrator.commands.app import WRONG
from orchestrator.plan.plan import make_plan
from orchestrator.plan.ways import Gpu
from orchestrator.review.own_data import describe_classes
from orchestrator.review.prospect import data_lines, trainings_at_once
from orchestrator.sweepfile.load import load_sweep
from tests.craft.tasks.tickets import tickets, write
from tests.orchestrator.conftest import Cli
from tests.orchestrator.logged import SweepLog, entry
from tests.orchestrator.plans import toy_plan

FORECAST = """\
name: next
model: sentence-transformers/all-MiniLM-L6-v2
tasks: [toy/sentiment]
training: {max_steps: 100}
resources: {cpu: 1}
space: [{method: lora, rank: {values: [1, 2, 3, 4]}}]
"""


@pytest.mark.parametrize(
    ("training", "speed", "said"),
    [
        ({"batch_size": 16, "precision": "float32", "max_length": 128}, None, "about 10 min with 2 at once, by the 1 trial"),
        # 4 x 330 s x 1.15 / 2
        ({"batch_size": 7}, Speed(30.0, 3.0, 0.0), "about 13 min with 2 at once, by a few steps that were timed here"),
        ({"batch_size": 7}, None, "how long: not known before a trial of this model and batch"),
    ],
)
def test_the_time_is_that_of_recorded_trials_or_of_timed_steps(
    training: dict[str, object], speed: Speed | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setattr("orchestrator.review.prospect.probe_plan", lambda plan: speed)
    monkeypatch.setattr("orchestrator.review.prospect.cores", lambda: 2)
    (tmp_path / "runs" / "broken").mkdir(parents=True)
    (tmp_path / "runs" / "broken" / "log.jsonl").write_text("{}\n")
    log, trained, lost = SweepLog(tmp_path / "runs" / "before"), entry(8), entry(16)
    log.begin(trained, lost, training=training | {"gradient_accumulation": 1})
    log.end(trained, "finished", steps=50, seconds=150.0)
    log.end(lost, "failed", steps=50, seconds=1.0)
    (tmp_path / "next.yaml").write_text(FORECAST)
    assert said in cli("plan", str(tmp_path / "next.yaml"), "--storage", str(tmp_path / "runs")).out


@pytest.mark.parametrize(
    ("resources", "block", "fits"),
    [
        ("{cpu: 2, custom: {disk: 1}}", "{}", 8),
        ("{cpu: 2}", "{cpu: 6}", 2),  # the block has a share of its own
        ("{cpu: 1, gpu: 0.4}", "{}", 4),  # two on each GPU
        ("{memory: 4000 TiB}", "{}", 0),
    ],
)
def test_as_many_trainings_run_at_once_as_fit_here(
    resources: str, block: str, fits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.review.prospect.cores", lambda: 16)
    monkeypatch.setattr("orchestrator.review.prospect.usable_gpus", lambda: [Gpu("a GPU", 2**34)] * 2)
    space = f"space:\n  - {{method: lora, rank: 1}}\n  - {{method: full, resources: {block}}}\n"
    plan = toy_plan(tmp_path, f"seeds: [0, 1, 2, 3]\nresources: {resources}\n{space}")
    assert trainings_at_once(plan) == fits


SWEEP = """\
name: mine
model: {model}
tasks: [{tasks}]
data: {{custom: {{t: {{train: train.csv, {more}}}}}}}
training: {{max_length: 8}}
space:
  - {{method: head}}
  - {{method: lora, rank: 1, max_length: {{values: [64, 1000]}}}}
"""
LETTERS = "text: [text], label: label"
PAIRS = "text: [text, reply], label: label"


def sweep(folder: Path, model: str, more: str = LETTERS, tasks: str = "custom/t") -> Path:
    texts = ["the kettle is " + "very " * (row % 10) + f"new{row:03}" for row in range(60)]
    rows = [(text, ("left", "right", "Left")[row % 3], "yes") for row, text in enumerate(texts)]
    with (folder / "train.csv").open("w", newline="", encoding="utf-8") as file:
        columns = slice(3 if more == PAIRS else 2)
        csv.writer(file).writerows(row[columns] for row in [("text", "label", "reply"), *rows, ("the last word", "up", "yes")])
    (folder / "sweep.yaml").write_text(SWEEP.format(model=model, more=more, tasks=tasks))
    return folder / "sweep.yaml"


def test_classes_doubts_and_tokens_are_printed(here: Path, tiny_bert: str, cli: Cli) -> None:
    file = sweep(here, tiny_bert)
    lines = [line for line in cli("plan", str(file)).out.splitlines() if line.startswith("custom/t: ")]
    data = load_sweep(file).data
    texts = load_splits(find_task("custom/t", data), data).train["text"][:]
    lengths = sorted(len(ids) for ids in load_tokenizer(tiny_bert)(texts)["input_ids"])
    share = 100 * sum(length > 8 for length in lengths) / len(lengths)
    assert lines[:5] == [
        "custom/t: 4 classes: Left 20, left 20, right 20, up 1",
        "custom/t: 'Left' and 'left' are different classes here: correct the labels if they should be one",
        "custom/t: of fewer than 5 rows, too few to learn and score: up 1",
        "custom/t: 49 of 61 rows train, 6 choose, 6 are scored",
        f"custom/t: {lengths[len(lengths) // 2]} tokens in the median, {lengths[-1]} at most (all 49 training rows); "
        f"max_length 8 cuts {share:.0f} %, max_length 64 cuts none, "
        "max_length 1000 (512 is the most that the model takes) cuts none",
    ]


@pytest.mark.parametrize(
    ("overrides", "more", "said"),
    [
        (["training.max_length=1"], LETTERS, "max_length 1 leaves no room for a text next to the special tokens of"),
        (["training.max_length=2"], LETTERS, "it must be 3 at least"),
        (["training.max_length=4"], PAIRS, "max_length 4 leaves no room for two texts"),
        (["task_training={custom/t: {max_length: 2}}"], LETTERS, "max_length 2 leaves no room"),
        (["space.1.max_length={values: [64, 2]}"], LETTERS, "space.1: LoRA r1, q v, max_length 2 cannot be built"),
    ],
)
def test_a_length_without_room_is_refused(
    tmp_path: Path, tiny_bert: str, cli: Cli, overrides: list[str], more: str, said: str
) -> None:
    file = sweep(tmp_path, tiny_bert, more)
    flags = [flag for override in overrides for flag in ("--set", override)]
    for command in ("plan", "run"):
        assert said in cli(command, str(file), "--storage", str(tmp_path / "runs"), *flags, status=WRONG).err


def test_what_the_model_does_not_tell_apart_is_counted(tmp_path: Path, tiny_bert: str) -> None:
    file = sweep(tmp_path, tiny_bert)
    texts = [chr(0x4E00 + row) + str(row % 3) for row in range(60)]
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(f"{text},{row % 20}\n" for row, text in enumerate(texts)))
    lines = [str(line).removeprefix("custom/t: ") for line in data_lines(make_plan(load_sweep(file)))]
    assert "20 of 60 rows train, 20 choose, 20 are scored; each class and each group" in "\n".join(lines)
    assert any("% of the tokens are unknown to this tokenizer" in line for line in lines)
    assert any(line.startswith("20 different training texts are read as 3") for line in lines)
    assert any("of 20 reported rows are training rows too, as the model reads them (equal tokens)" in line for line in lines)


@pytest.mark.slow
def test_a_cell_of_megabytes_is_cut_before_it_is_tokenized(tmp_path: Path, tiny_bert: str) -> None:
    tokenizer = load_tokenizer(tiny_bert)
    long = "the kettle is new " * 20_000
    for text, tokens in (("the kettle", 64), (long, 64), ("w" * 100_000, 64), (" " * 50_000 + long, 64)):
        part = shorten(text, tokenizer, tokens)
        assert text.startswith(part)
        assert (len(part) < len(text)) == (text.endswith(long))
        whole, cut = (encode(tokenizer, [one], ["x"], max_length=tokens, loss="text") for one in (text, part))
        assert whole == cut
    file = sweep(tmp_path, tiny_bert)
    (tmp_path / "train.csv").write_text((tmp_path / "train.csv").read_text() + f"{long},left\n{long}.,left\n")
    data = load_sweep(file).data
    rows = load_splits(find_task("custom/t", data), data).train
    lengths = [len(ids) for ids in tokenizer(rows["text"][:])["input_ids"]]
    assert encode_split(rows, "classification", tokenizer, 32).lost == sum(length > 32 for length in lengths)


def test_classes_are_counted_and_doubted(tmp_path: Path) -> None:
    counts = {"Household": 30, "knowledge": 9, "house hold": 6, "caf\u00e9": 5, "cafe\u0301": 5, "none": 5, "01": 6, "1.0": 5}
    cells = [name for name, count in {**counts, "none|knowledge": 1}.items() for _ in range(count)]
    path = write(tmp_path / "train.csv", [{"title": f"{row}", "body": "b", "queue": cell} for row, cell in enumerate(cells)])
    task, data = tickets(path)
    first, *doubts = describe_classes(task, data.custom["tickets"])
    assert first.startswith("9 classes: Household 30, knowledge 9, 01 6, house hold 6, 1 5, ")
    assert [doubt.partition(" are ")[0] for doubt in doubts[:3]] == [
        "'01' and '1'",
        "'Household' and 'house hold'",
        "'cafe\u0301' and 'caf\u00e9'",
    ]
    assert doubts[3] == "of fewer than 5 rows, too few to learn and score: none|knowledge 1"
    assert doubts[4].startswith("class 'none'")
    assert doubts[5].startswith("'none|knowledge' joins other classes (none, knowledge)")
    assert len(doubts) == 6


def test_large_numbers_are_classes_of_their_own(tmp_path: Path) -> None:
    names = [10**15, 10**15 + 1, 2**53, 2**53 + 1, "9" * 5000 + ".0", "1e-400", "1e-401"]
    rows = [{"title": f"{row}", "body": "b", "queue": names[row % len(names)]} for row in range(70)]
    task, data = tickets(write(tmp_path / "train.jsonl", rows))
    _, *doubts = describe_classes(task, data.custom["tickets"])
    assert (len(task.labels), doubts) == (7, [])


def test_f1_is_that_of_the_rarer_class_or_of_the_one_that_is_named(tmp_path: Path) -> None:
    rows = [{"text": f"t{row}", "label": ("rare", "usual")[row % 10 > 0]} for row in range(100)]
    path = str(write(tmp_path / "train.csv", rows))

    def scores(**settings: Any) -> tuple[float, str]:
        block = CustomTask(train=path, text="text", label="label", metric="f1", **settings)
        task = find_task("custom/x", DataSettings(custom={"x": block}))
        labels = np.array([row % 10 > 0 for row in range(100)]).astype(int)
        return compute_metrics(task, np.ones(100, dtype=int), labels)["score"], next(describe_classes(task, block))

    assert scores() == (0.0, "2 classes: usual 90, rare 10; f1 is of the class 'rare'")
    assert scores(positive="usual") == (
        pytest.approx(100 * 180 / 190),
        "2 classes: usual 90, rare 10; f1 is of the class 'usual'",
    )
    assert scores(labels=("usual", "rare"))[1].endswith("'rare'")
    with pytest.raises(ValueError, match=r"data\.custom\.x\.positive: got 'odd'; allowed are: rare, usual"):
        scores(positive="odd")
