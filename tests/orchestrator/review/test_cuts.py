"""Cut configurations in a sweep's record: what the folder, the front, the store and later sessions know of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient

from craft.spec import RunSpec
from craft.trainer.cutting import Cut
from orchestrator.adapters import main
from orchestrator.plan.trial import TrialResult, TrialSpec
from orchestrator.record.ledger import Ledger
from orchestrator.review.cuts import CutTrial, cut_labels, recorded_cuts, write_down
from orchestrator.review.past_sweep import read_folder
from orchestrator.review.pick import pick
from orchestrator.tools.journal import Journal
from tests.orchestrator.conftest import SmallSweep
from tests.orchestrator.recorded import over_seeds, record


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    """A finished sweep of two configurations."""
    folder = record(tmp_path / "sweep", {"LoRA r4": (4_000, over_seeds(80, 82)), "LoRA r8": (8_000, over_seeds(90, 92))})
    journal = Journal(folder / "journal.jsonl")
    journal.append({"kind": "sweep_ended", "time": 0, "status": "finished", "summary": {}, "row": {}})
    journal.close()
    return folder


def cuts_to(tmp_path: Path, size: int, *scores: float) -> list[CutTrial]:
    """Cut adapters of seeds 0, 1, ...; their folders hold one file."""
    done = []
    for seed, score in enumerate(scores):
        cut_from = {"run": f"{seed:016x}", "to": f"parameters:{size}"}
        run = RunSpec(model="some/model", task="toy/sentiment", method="lora", seed=seed, cut_from=cut_from)  # type: ignore[arg-type]
        folder = tmp_path / f"cut-{size}-{seed}" / "adapter"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
        counts = {"trainable_parameters": size}
        result = TrialResult(run.key, "finished", {"search_score": score, "score": score}, counts, seconds=1.0)
        done.append(CutTrial(TrialSpec(run, f"c{size:09}", f"LoRA r8, cut to {size}"), result, folder))
    return done


def test_cut_configurations_stand_on_the_front_and_in_the_store(ended: Path, tmp_path: Path, uri: str) -> None:
    before = Ledger(ended).results()
    cuts = [*cuts_to(tmp_path, 2_000, 85, 87), *cuts_to(tmp_path, 5_000, 70, 72)]
    marked = {one.configuration: one for one in write_down(ended, "sweep", cuts, uri)}
    # 86 with 2,000 parameters beats 81 with 4,000; 71 with 5,000 is beaten.
    assert {name for name, one in marked.items() if one.on_front} == {"c000002000", "0000000001"}
    found = read_folder(ended, uri)
    assert found.adapter(cuts[0].trial.key, tmp_path) == ended / "adapters" / cuts[0].trial.key / "adapter"
    assert pick("under:3000", found.summaries, found.sweep.objectives).summary.configuration == "c000002000"
    whole = next(one for one in found.summaries if one.configuration == "0000000000")
    cut = next(one for one in found.summaries if one.configuration == "c000002000")
    assert found.trained(cut) is found.trained(whole) is whole, "what is cut is the trained one"
    assert pick("LoRA r", [whole, cut], found.sweep.objectives).summary is whole, "a part of both labels means the trained one"
    assert {key: one for key, one in Ledger(ended).results().items() if key in before} == before
    with (ended / "front.csv").open() as file:
        rows = {row["configuration"]: row for row in csv.DictReader(file)}
    assert (rows["c000002000"]["cut_to"], rows["c000002000"]["on_front"]) == ("parameters:2000", "True")
    assert rows["0000000000"]["cut_to"] == ""
    assert (rows["c000002000"]["seconds"], rows["0000000000"]["seconds"] != "") == ("", True), (
        "nothing was trained for a cut one"
    )
    assert [row["score"] for row in json.loads((ended / "cuts.json").read_text())] == [86, 71]
    # What a later session adds to its own configurations:
    kept = recorded_cuts(ended, {"0" * 16, "1" * 16})
    names = cut_labels(whole, [Cut(parameters=2_000), Cut(parameters=1_999), Cut(parameters=500), Cut(rank=2)])
    assert [name.removeprefix("LoRA r4, cut to ") for name in names] == ["2,000", "1,999", "1/8", "r2"]
    assert [(one.configuration, one.complete) for one in kept] == [("c000002000", True), ("c000005000", True)]
    assert recorded_cuts(ended, {"another"}) == [], "what they were cut from is no part of the sweep any more"

    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("sweep").experiment_id])
    tagged = {run.data.tags["craft.key"]: run for run in runs if "craft.key" in run.data.tags}
    trial, whole = tagged[cuts[0].trial.key], tagged["c000002000"]
    assert trial.data.params["cut_from"] == "0" * 16
    assert (trial.info.status, trial.data.metrics["score"]) == ("FINISHED", 85)
    assert (whole.data.metrics["score"], whole.data.tags["craft.on_front"]) == (86, "true")
    # Trained: (81 + 91) / 2; cut: (86 + 71) / 2.
    sweep = next(run for run in runs if run.data.tags["craft.kind"] == "sweep")
    assert sweep.info.status == "FINISHED"


def test_a_sweep_without_cuts_is_not_read_for_them(ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.review.cuts.read_folder", lambda *_: pytest.fail("the journal may be long"))
    assert recorded_cuts(ended, {"0" * 16}) == []


@pytest.mark.slow
def test_the_command_cuts_scores_and_records(
    small_sweep: SmallSweep, tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    from craft import load_adapter

    folder: Any = shutil.copytree(small_sweep.folder, tmp_path / "small")
    whole = next(one for one in read_folder(folder).summaries if one.method == "craft")
    flags = [str(folder), "--tracking-uri", uri, "--pick", whole.configuration, "--slice", "3", "--slice", "parameters:70"]
    assert main([*flags, "--score", "--to", str(tmp_path / "out")]) == 0
    rows = {row["cut_to"]: row for row in json.loads((tmp_path / "out" / "cuts.json").read_text())}
    assert rows["3"]["trainable_parameters"] == 2 * (36 + 2 * 8 * 3 + 2 * 8 * 3), (
        "six layers: a J1 of rank 3 is as large as a whole one"
    )
    assert len(rows["3"]["trials"]) == 4
    model, tokenizer = load_adapter(tmp_path / "out" / "3" / "toy-sentiment" / "seed-1")
    assert np.isfinite(model(**tokenizer("a fine day", return_tensors="pt")).logits.detach().numpy()).all()
    now = read_folder(folder)
    cut = next(one for one in now.summaries if one.parameters.get("cut_to") == "3")
    assert cut.complete
    capsys.readouterr()
    assert main([str(folder), "--tracking-uri", uri, "--pick", cut.label, "--slice", "2", "--to", str(tmp_path / "two")]) == 0
    said = capsys.readouterr().out
    assert f"{whole.label} ({whole.configuration}), which was trained, is cut instead" in " ".join(said.split())
    assert f"{whole.label}, cut to r2" in " ".join(said.split())
    assert main([str(folder), "--pick", cut.configuration, "--to", str(tmp_path / "home")]) == 0, (
        "it is taken home as any other"
    )
