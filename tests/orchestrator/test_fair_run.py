"""`compare: fair` on real Ray gives the numbers of sweeps by hand: all rates with one seed, each task's best with others."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import yaml

from dashboards.content import everything
from dashboards.store import Store
from orchestrator.review.past_sweep import read_folder
from orchestrator.run import main
from tests.orchestrator.logged import runs
from tests.orchestrator.recorded import results_of

pytestmark = pytest.mark.slow

RATES = [1e-3, 1e-2, 1e-1]
TASKS = ["toy/sentiment", "toy/paraphrase"]
SHARED = {
    "tasks": TASKS,
    "training": {"max_steps": 8, "batch_size": 8, "max_length": 16, "train_examples": 64, "eval_examples": 40},
}
CRAFT = {"method": "craft", "ranks": ["all", 8, 8], "sizes": [60]}
BLOCKS = [{"method": "lora", "rank": 1}, {"method": "lora", "rank": 4}, CRAFT]

Row = dict[str, str]


def run(folder: Path, name: str, **content: object) -> list[Row]:
    """Runs a sweep by the command line; returns the rows of its front.csv."""
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"name": name, "model": str(folder / "model"), **SHARED, **content}))
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    assert main([str(file), "--storage", str(folder / "runs"), "--tracking-uri", uri, "--cpus", "2", "--quiet"]) == 0
    return list(csv.DictReader((folder / "runs" / name / "front.csv").open()))


def size_of(row: Row) -> str:
    return row.get("cut_to") or row["trainable_parameters"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import BertConfig, BertModel

    from craft.models.loading import MINILM, load_tokenizer

    root = tmp_path_factory.mktemp("fair")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(**sizes, initializer_range=0.2)).save_pretrained(root / "model")
    load_tokenizer(MINILM).save_pretrained(root / "model")
    return root


def by_hand(folder: Path) -> dict[tuple[str, str, str], str]:
    """The scores of each task's best rates, by method, size and task. The rates are chosen here, from the trials of a sweep."""
    run(folder, "first", seeds=[1000], space=[{**block, "learning_rate": {"values": RATES}} for block in BLOCKS])
    searched: dict[tuple[str, str], dict[float, list[float]]] = {}
    for one in read_folder(folder / "runs" / "first").entries:
        assert one.result is not None
        # The area under two scores is their mean: a CRAFT counts by the sum of its two outputs, a LoRA by its rank.
        rates = searched.setdefault((str(one.parameters.get("rank", "")), one.task), {})
        rates.setdefault(one.parameters["learning_rate"], []).append(one.result.metrics["search_score"])
    best = {key: max(rates, key=lambda rate: (sum(rates[rate]), -rate)) for key, rates in searched.items()}
    found = {}
    for number, task in enumerate(TASKS):
        space = [{**block, "learning_rate": best[str(block.get("rank", "")), task]} for block in BLOCKS]
        for row in run(folder, f"second{number}", tasks=[task], seeds=[0, 1], space=space):
            found[row["method"], size_of(row), task] = row["score"]
    return found


def test_it_gives_the_numbers_of_sweeps_by_hand(folder: Path) -> None:
    hand = by_hand(folder)
    rows = run(
        folder, "fair", seeds=[0, 1], compare="fair", tuned={"learning_rate": {"values": RATES}},
        space=[*BLOCKS, {"method": "bitfit", "learning_rate": 5e-3, "tuned": False}],
    )  # fmt: skip
    fair = {(row["method"], size_of(row)): row for row in rows}
    assert len(fair) == len(rows) == 5
    assert all((row["complete"], row["seeds"]) == ("True", "2") for row in rows)
    assert len(hand) == 4 * len(TASKS)
    assert hand == {(*key, task): fair[key][f"score/{task}"] for key in fair if key[0] != "bitfit" for task in TASKS}
    assert {key[0]: (row["tuned"], row["tuning_trials"]) for key, row in fair.items()} == {
        "lora": ("True", "6"),
        "craft": ("True", "6"),
        "bitfit": ("False", "0"),
    }

    stored = runs(f"sqlite:///{folder / 'mlflow.db'}", "fair")
    for row in rows:
        data = stored["configuration", row["configuration"]].data
        assert data.metrics["tuning_trials"] == float(row["tuning_trials"])
        assert data.metrics["tuning_seconds"] == pytest.approx(float(row["tuning_seconds"]))
        assert data.tags["craft.tuned"] == row["tuned"].lower()
    assert "tuned" not in (folder / "runs" / "fair" / "front.tex").read_text()  # a paper's table has no tuning rows
    table = everything(Store(f"sqlite:///{folder / 'mlflow.db'}"), "fair")["specs"]["table"]["table"]
    (column,) = [one["values"] for one in table["columns"] if one["key"] == "tuning"]
    assert all("6 trials, " in words or words == "not tuned" for words in column)
    assert column.count("not tuned") == 1


def test_the_same_file_resumed_with_one_more_seed_runs_that_seed_alone(folder: Path) -> None:
    file = folder / "fair.yaml"
    before = len(results_of(folder / "runs" / "fair"))
    flags = ["--storage", str(folder / "runs"), "--tracking-uri", f"sqlite:///{folder / 'mlflow.db'}", "--cpus", "2", "--quiet"]
    assert main([str(file), *flags, "--resume", "--set", "seeds=[0, 1, 2]"]) == 0
    rows = list(csv.DictReader((folder / "runs" / "fair" / "front.csv").open()))
    assert {row["seeds"] for row in rows if row["complete"] == "True"} == {"3"}
    assert len(results_of(folder / "runs" / "fair")) - before == 2 * 5
