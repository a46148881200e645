"""Sweeps from Python: what is planned and read equals what the commands and files have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import open_sweep, plan, run
from orchestrator.commands import api
from orchestrator.commands.app import main
from orchestrator.record.options import Options
from orchestrator.review.past_sweep import NoSuchSweep
from orchestrator.sweepfile.mistakes import SweepError
from tests.orchestrator.recorded import over_seeds, record, write_adapter

TINY: dict[str, Any] = {
    "name": "tiny",
    "tasks": ["toy/sentiment"],
    "training": {"max_steps": 2, "batch_size": 4, "max_length": 16, "train_examples": 24, "eval_examples": 16},
    "space": [{"method": "lora", "rank": {"values": [1, 2]}}, {"method": "head"}],
}


def test_a_dict_a_text_and_a_file_plan_the_same(tiny_bert: str, tmp_path: Path) -> None:
    content = TINY | {"model": tiny_bert}
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(content))
    sweeps = content, content | {"model": Path(tiny_bert)}, yaml.safe_dump(content), file, str(file)
    plans = [plan(sweep) for sweep in sweeps]
    first = plans[0].configurations
    assert len({tuple(each.configurations["configuration"]) for each in plans}) == 1
    assert first["label"].tolist() == ["LoRA r1, q v", "LoRA r2, q v", "Head alone"]
    assert first["trainable_parameters"].tolist() == [384, 768, 0]  # 3 layers x 2 projections x (32 + 32) x r
    assert plans[0].trials == 3
    assert "LoRA r2, q v" in str(plans[0])
    assert plan(content, "seeds=[0, 1]").trials == 6
    assert plan(content, "constraints={trainable_parameters: {max: 500}}").dropped.keys() == {"LoRA r2, q v"}


def test_a_mistake_in_a_dict_names_its_place() -> None:
    with pytest.raises(SweepError, match=r"space.*rnak|rnak.*Did you mean 'rank'"):
        plan(TINY | {"model": "m", "space": [{"method": "lora", "rnak": 1}]})
    with pytest.raises(NoSuchSweep, match="there is no sweep 'nowhere'"):
        open_sweep("nowhere")


def test_a_result_has_the_numbers_of_the_files(tmp_path: Path) -> None:
    scores = {"LoRA r1": (100, over_seeds(81.5, 79)), "LoRA r2": (200, over_seeds(85.0, 86.0))}
    result = open_sweep(
        record(tmp_path / "runs" / "two", scores, adapter=write_adapter(tmp_path / "adapter", {"peft_type": "LORA"}))
    )
    assert result.front["label"].tolist() == ["LoRA r1", "LoRA r2"]
    assert result.front["score"].tolist() == [80.25, 85.5]
    assert result.front["on_front"].tolist() == [True, True]
    assert sorted(result.trials["metric.score"]) == [79.0, 81.5, 85.0, 86.0]
    assert (result.best().label, result.best(under=150).label) == ("LoRA r2", "LoRA r1")
    assert result.compare(result, "LoRA r1", "LoRA r2").difference.value == pytest.approx(80.25 - 85.5)
    with pytest.raises(ValueError, match="with itself"):
        result.compare(result)
    (folder,) = result.pick("LoRA r2").save(tmp_path / "saved")
    assert main(["take", str(tmp_path / "runs" / "two"), "--pick", "LoRA r2", "--to", str(tmp_path / "taken")]) == 0
    for file in ("run.json", "adapter_config.json"):
        assert (folder / file).read_bytes() == (tmp_path / "taken" / file).read_bytes()


def test_a_notebook_shows_a_label_as_text(tmp_path: Path) -> None:
    result = open_sweep(record(tmp_path / "runs" / "one", {"<b>r1</b>": (100, over_seeds(81.5, 79))}))
    assert "<b>" in result.answer.text
    assert "<b>" not in result._repr_html_()


def test_a_text_replaces_no_file_but_that_of_its_own_sweep(here: Path) -> None:
    sweep, mine = TINY | {"model": "sentence-transformers/all-MiniLM-L6-v2"}, here / "tiny.yaml"
    mine.write_text("name: tiny\n")
    with pytest.raises(ValueError, match=r"tiny\.yaml is no file of a sweep that has run"):
        run(sweep, storage=".")
    assert mine.read_text() == "name: tiny\n"
    (here / "tiny").mkdir()
    (here / "tiny" / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    with pytest.raises(SweepError, match="holds another sweep of this name"):
        run(sweep | {"training": {"max_steps": 3}}, storage=".")
    assert mine.read_text() == "name: tiny\n"


@pytest.mark.usefixtures("here")
def test_a_run_from_python_is_continued_in_all_its_places(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Options]()
    monkeypatch.setattr(api, "run_file", lambda options, console: seen.append(options))
    sweep, uri = TINY | {"model": "sentence-transformers/all-MiniLM-L6-v2"}, "sqlite:///my store.db"
    with pytest.raises(NoSuchSweep):  # nothing has run
        run(sweep, "seeds=[0, 1]", storage="my runs", tracking_uri=uri, address="auto", cpus=2)
    places = "--storage 'my runs' --tracking-uri 'sqlite:///my store.db' --address auto --cpus 2"
    command = f"craft-sweeps run 'my runs/tiny.yaml' --resume --set 'seeds=[0, 1]' {places}"
    assert [options.again() for options in seen] == [command]
    (place := Path("my runs/tiny")).mkdir()
    (place / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    with pytest.raises(SweepError, match="holds this sweep already: continue it by resume=True"):
        run(sweep, storage="my runs", resume=False)
    assert len(seen) == 1


@pytest.mark.parametrize("labels", [("LoRA r1",), ()])
def test_a_result_without_a_finished_trial_has_its_columns(tmp_path: Path, labels: tuple[str, ...]) -> None:
    result = open_sweep(record(tmp_path / "runs" / "none", {label: (100, {}) for label in labels}))
    assert result.front[["label", "score", "score_low", "trainable_parameters"]].isna().all()["score"]
    assert result.front["label"].tolist() == [*labels]
    assert result.trials[["key", "task", "metric.score"]].empty
