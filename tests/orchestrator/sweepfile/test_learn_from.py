"""`search.learn_from`, and `search.warm_start`, its name in older files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from orchestrator.record.resume import check_resume
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.sweep import Sweep

FILE = "name: s\nmodel: m\ntasks: [toy/sentiment]\nspace: [{method: lora}]\nsearch: {algorithm: tpe, trials: 3%s}\n"


def load(folder: Path, more: str, *overrides: str) -> Sweep:
    path = folder / "file.yaml"
    path.write_text(FILE % more)
    return load_sweep(path, overrides)


def test_the_old_key_means_the_same_and_is_written_under_the_new_name(tmp_path: Path) -> None:
    old = load(tmp_path, ", warm_start: [first, runs/lora]")
    new = load(tmp_path, ", learn_from: [first, runs/lora]")
    assert old.search.learn_from == ("first", "runs/lora")
    assert old.model_dump() == new.model_dump()
    assert old.to_yaml() == new.to_yaml()
    search = yaml.safe_load(old.to_yaml())["search"]
    assert search["learn_from"] == ["first", "runs/lora"]
    assert "warm_start" not in search


@pytest.mark.parametrize("sources", ["[]", "[first]"])
def test_a_sweep_stored_under_the_old_key_is_resumed(tmp_path: Path, sources: str) -> None:
    sweep = load(tmp_path, f", learn_from: {sources}")
    stored = yaml.safe_load(sweep.to_yaml())
    stored["search"]["warm_start"] = stored["search"].pop("learn_from")
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(stored))
    assert load_sweep(tmp_path / "sweep.yaml").model_dump() == sweep.model_dump()
    check_resume(tmp_path, sweep)


def test_both_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=r"file\.yaml:5: search: has learn_from and warm_start.*keep learn_from"):
        load(tmp_path, ", learn_from: [first], warm_start: [second]")


@pytest.mark.parametrize("key", ["learn_from", "warm_start"])
def test_mistakes_name_the_key_that_the_file_has(tmp_path: Path, key: str) -> None:
    with pytest.raises(SweepError, match=rf"file\.yaml:5: search\.{key}: got 'first'; must be a list"):
        load(tmp_path, f", {key}: first")
    with pytest.raises(SweepError, match=rf"search\.{key}: grid learns nothing"):
        load(tmp_path, f", {key}: [first]", "search.algorithm=grid", "search.trials=null")
