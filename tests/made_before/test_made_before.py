"""What an older version of this project wrote is read and gone on with as that version would have done it.

Everything here was made with the code of commit 3706dda, before the packages were cut into folders: sweeps whose driver was
killed, their tracking store, adapters, a run cut off, a factor store, a served model, a record for the simulator, keys. What
that version itself made of them is in `expected.json` and `keys.json`. If one of these tests fails, users' folders are no
longer read as they were: mend the code, not the numbers. The script that made it runs with that code alone and is kept in the
history: `git show cd7e3c7:tests/made_before/make.py`.
"""

from __future__ import annotations

import functools
import gzip
import json
import shutil
import sqlite3
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml

from craft.factors.store import default_store
from craft.results import Counts, RunResult
from craft.settings import OLDER
from craft.spec import RunSpec
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.training import train_run
from orchestrator import run as command
from orchestrator import session
from orchestrator import simulate as simulator
from orchestrator.plan.plan import Plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import Train
from orchestrator.record.ledger import Ledger
from orchestrator.record.resume import check_resume, load_as_begun
from orchestrator.review.past_sweep import PastSweep, find_sweep, read_folder
from orchestrator.search import warm_start
from orchestrator.search.proposers import propose
from orchestrator.simulator.curves import read_record, record_sweep
from orchestrator.simulator.simulation import simulate
from orchestrator.simulator.yardstick import Yardstick, whole_record
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.sweep import Sweep

MADE = Path(__file__).parent
SHIPPED = MADE.parent.parent / "sweeps"
EXPECTED: dict[str, Any] = json.loads((MADE / "expected.json").read_text())
KEYS: dict[str, Any] = json.loads((MADE / "keys.json").read_text())
SWEEPS = ("tpe", "asha", "promotion")
ADAPTERS = ("craft", "lotr", "milora", "bitfit", "lokr")
TEXTS = ["a warm and funny film", "dull from start to end", "the plot is clever", "I hated it"]
HERE = "@HERE@"


@dataclass(frozen=True)
class Place:
    """The folders of the three sweeps, as they lay when their drivers were killed, and the store that they share."""

    root: Path
    uri: str

    def folder(self, name: str) -> Path:
        return self.root / "runs" / name


@pytest.fixture(autouse=True)
def own_factor_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decompositions of the model here stay out of the user's cache."""
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for kept, name in (("folders", "runs"), ("artifacts", "mlartifacts")):  # under their own names git passes over them
        shutil.copytree(MADE / kept, tmp_path / name)
    for cursor in tmp_path.glob("runs/*/tracking.cursor.json"):  # offsets into a journal whose paths have another length now
        journal = cursor.with_name("journal.jsonl").read_bytes()
        offsets = json.loads(cursor.read_text())
        moved = {uri: len(journal[:at].replace(HERE.encode(), bytes(tmp_path))) for uri, at in offsets.items()}
        cursor.write_text(json.dumps(moved))
    for file in tmp_path.rglob("*"):
        if file.suffix in (".yaml", ".json", ".jsonl") and HERE in (text := file.read_text()):
            file.write_text(text.replace(HERE, str(tmp_path)))
    dump = gzip.decompress((MADE / "mlflow.sql.gz").read_bytes()).decode().replace(HERE, str(tmp_path))
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        store.executescript(dump)
    return Place(tmp_path, f"sqlite:///{tmp_path / 'mlflow.db'}")


def counted(run: RunSpec) -> Counts:
    size = 100 if run.method == "lora" else 60
    return Counts(size, 2, 1000, 4 * size)


def planned(sweep: Sweep) -> Plan:
    return warm_start.planned(sweep, Planner(sweep, counted, lambda run: 1000))


def plain(content: Any) -> Any:
    return json.loads(json.dumps(content))


def summed_up(record: PastSweep) -> list[list[Any]]:
    return [[one.configuration, one.label, one.complete, one.on_front] for one in record.summaries]


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_s_folder_and_its_store_are_read(place: Place, name: str) -> None:
    expected, folder = EXPECTED["cut"][name], place.folder(name)
    assert {key: plain(one.to_json()) for key, one in Ledger(folder).results().items()} == {
        key: json.loads(json.dumps(one).replace(HERE, str(place.root))) for key, one in expected["results"].items()
    }
    record, stored = read_folder(folder), find_sweep(name, place.uri)
    entries = [[one.key, one.configuration, one.task, one.seed, one.result and one.result.status] for one in record.entries]
    assert entries == expected["entries"]
    assert summed_up(record) == expected["summaries"]
    assert sorted([one.key, one.configuration, one.task, one.seed] for one in stored.entries if one.key) == expected["stored"]
    curves, left_out = record_sweep(folder)
    assert [len(curves), left_out, [curve.name for curve in curves]] == expected["curves"]
    check_resume(folder, load_as_begun(MADE / f"{name}.yaml", [f"storage={place.root / 'runs'}"]))  # it is the same sweep


def test_a_sweep_that_used_what_was_removed_is_resumed_without_it(place: Place) -> None:
    effective = place.folder("tpe") / "sweep.yaml"
    content = yaml.safe_load(effective.read_text())
    content["space"].append({"method": "lokr", "rank": 8})
    content["resources"] |= {"workers": 2, "fsdp": True}
    effective.write_text(yaml.safe_dump(content))
    check_resume(place.folder("tpe"), load_as_begun(MADE / "tpe.yaml", [f"storage={place.root / 'runs'}"]))
    assert summed_up(read_folder(place.folder("tpe"))) == EXPECTED["cut"]["tpe"]["summaries"]


@pytest.mark.parametrize("name", SWEEPS)
def test_an_adapter_of_a_sweep_s_folder_is_found(place: Place, tmp_path: Path, name: str) -> None:
    kept = next(place.folder(name).glob("ray/attempt-1/*/checkpoint_*/adapter"))
    key = kept.parent.parent.name
    assert read_folder(place.folder(name)).fetch(key, tmp_path / "scratch") == kept


def test_a_study_is_taken_up_and_proposes_what_it_would_have(place: Place) -> None:
    plan = planned(load_as_begun(MADE / "tpe.yaml", [f"storage={place.root / 'runs'}"]))
    proposer = propose(plan, place.folder("tpe"))
    assert [one.id for one in plan.configurations] == EXPECTED["cut"]["tpe"]["proposed"]
    proposed = proposer.suggest()
    assert proposed is not None
    assert [proposed.id, proposed.label] == EXPECTED["cut"]["tpe"]["next"]


def test_an_earlier_sweep_starts_another_one_warm(place: Place) -> None:
    sweep = load_sweep(MADE / "warm.yaml", [f"storage={place.root / 'runs'}"], OLDER)
    plan = planned(sweep)
    assert plain([asdict(one) for one in plan.earlier]) == EXPECTED["cut"]["earlier"]
    proposer = propose(plan, None)
    assert [one and one.id for one in (proposer.suggest() for _ in range(3))] == EXPECTED["cut"]["after warm start"]


def stand_in(log: str) -> Train:
    """What trained for the script that made the folder, but for whoever kills it: three epochs with a checkpoint each."""

    def train(spec, directory, *, report, resume_from, on_step):
        import json
        import math
        from pathlib import Path

        from craft.results import Counts, Progress, RunResult
        from craft.trainer.checkpoint import write_folder

        def score(epoch):
            rate = -10 * abs(math.log10(spec.training.learning_rate) + 3)
            if spec.task == "toy/sentiment" and epoch < 3:
                return 50.0
            return 80 + rate + epoch - spec.seed / 2 + sum(map(ord, spec.method)) % 7

        done = json.loads((resume_from / "state.json").read_text())["epoch"] if resume_from else 0
        for epoch in range(done + 1, 4):
            with Path(log).open("a") as file:
                file.write(f"epoch {spec.key} {epoch}\n")
            on_step(epoch, 3)
            folder = write_folder(
                directory / f"checkpoint-{epoch}",
                lambda aside, at=epoch: (aside / "state.json").write_text(json.dumps({"epoch": at})),
            )
            points = [{"step": epoch, "train_loss": 1 / epoch}]
            report(Progress(epoch, 3, float(epoch), {"search_score": score(epoch)}, points, folder))
        adapter = directory / "adapter"
        adapter.mkdir()
        (adapter / "adapter_model.safetensors").write_text(spec.key)
        size = 100 if spec.method == "lora" else 60
        metrics = {"search_score": score(3), "score": score(3) - 1}
        return RunResult(metrics, Counts(size, 2, 1000, 4 * size), adapter, 3, 3, 1.0)

    return train


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_that_was_cut_off_comes_to_the_same_end(place: Place, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from mlflow import MlflowClient
    from rich.console import Console

    client = MlflowClient(place.uri)
    experiment = client.get_experiment_by_name(name).experiment_id
    before = {one.info.run_id for one in client.search_runs([experiment], max_results=1000)}
    log = place.root / f"{name}.log"
    log.touch()
    monkeypatch.setattr(session, "_prepare", lambda *_: {})
    monkeypatch.setattr(session, "_page", lambda *_: None)
    monkeypatch.setattr(session, "run_sweep", functools.partial(session.run_sweep, train=stand_in(str(log))))
    arguments = [str(MADE / f"{name}.yaml"), "--tracking-uri", place.uri, "--storage", str(place.root / "runs")]
    given = command.parser().parse_args([*arguments, "--cpus", "1", "--quiet", "--resume"])
    sweep = load_as_begun(given.sweep, command._overrides(given))
    check_resume(sweep.folder, sweep)
    console = Console(file=sys.stdout, quiet=True)
    assert command._run(given, planned(sweep), sweep.folder, True, console, "again") == 0

    expected, folder = EXPECTED["resumed"][name], place.folder(name)
    assert log.read_text().splitlines() == expected["trained_after"]  # nothing that was done is done again
    found = {
        key: [one.status, one.metrics, one.steps, [note for note in one.notes if "spared" in note]]
        for key, one in Ledger(folder).results().items()
    }
    assert found == expected["results"]
    summaries = read_folder(folder).summaries
    assert [[one.configuration, one.label, one.on_front, one.complete] for one in summaries] == expected["configurations"]
    runs = client.search_runs([experiment], max_results=1000)
    assert before <= {one.info.run_id for one in runs}
    assert {one.info.status for one in runs} == {"FINISHED"}
    trials = [one.data.tags["craft.key"] for one in runs if one.data.tags["craft.kind"] == "trial"]
    assert len(trials) == len(set(trials))
    assert set(trials) <= set(found)
    for one in runs:
        history = client.get_metric_history(one.info.run_id, "search_score")
        assert len({point.step for point in history}) == len(history)


def outputs_of(folder: Path) -> torch.Tensor:
    model, tokenizer = load_adapter(folder, str(MADE / "base"))
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=64, return_tensors="pt")
    with torch.no_grad():
        return model(**batch).logits


@pytest.mark.parametrize("method", ADAPTERS)
def test_an_adapter_gives_the_outputs_that_it_gave(method: str) -> None:
    found = outputs_of(MADE / "adapters" / method)
    torch.testing.assert_close(found, torch.tensor(EXPECTED["trained"][method]["outputs"]), atol=1e-5, rtol=1e-5)
    content = json.loads((MADE / "adapters" / method / "run.json").read_text())
    assert RunSpec.recorded(content["spec"]).key == EXPECTED["trained"][method]["key"]


def test_stored_factors_are_found_and_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(MADE / "factors", tmp_path / "factors")
    before = {path.name: path.read_bytes() for path in (tmp_path / "factors").iterdir() if path.suffix == ".safetensors"}
    assert before
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path))
    outputs_of(MADE / "adapters" / "craft")
    assert default_store().root == tmp_path
    assert default_store().decompositions == 0
    assert {path.name: path.read_bytes() for path in default_store().files()} == before


def test_a_run_that_was_cut_off_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = EXPECTED["trained"]["checkpoint"]
    spec = RunSpec.recorded(expected["spec"])
    assert spec.key == expected["key"]
    monkeypatch.chdir(MADE)  # its model is `base`
    reported: list[int] = []
    checkpoint = shutil.copytree(MADE / "checkpoint", tmp_path / expected["from"])
    result: RunResult = train_run(
        spec, tmp_path / "run", report=lambda progress: reported.append(progress.step), resume_from=checkpoint
    )
    assert min(reported) > int(expected["from"].rpartition("-")[2])
    assert {name: result.metrics[name] for name in expected["metrics"]} == pytest.approx(expected["metrics"], abs=1e-3)
    torch.testing.assert_close(outputs_of(result.adapter), torch.tensor(expected["outputs"]), atol=1e-3, rtol=1e-3)


def test_a_registered_model_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.pyfunc import load_model

    monkeypatch.chdir(MADE)  # its model is `base`
    served = shutil.copytree(MADE / "served", tmp_path / "served")
    (served / "MLmodel").write_text((served / "MLmodel").read_text().replace(HERE, str(tmp_path)))
    model = load_model(str(served))
    answers = model.predict(pd.DataFrame({"text": TEXTS}))
    assert list(answers) == ["negative", "positive"]
    torch.testing.assert_close(
        torch.tensor(answers.to_numpy()), torch.tensor(EXPECTED["served"]), atol=1e-5, rtol=1e-5, check_dtype=False
    )


def test_a_record_is_read_from_both_kinds_of_file() -> None:
    assert read_record(MADE / "curves.csv").curves == read_record(MADE / "curves.jsonl").curves


@pytest.mark.parametrize("name", [name for name in EXPECTED["replays"] if name != "whole"])
def test_a_record_is_replayed_to_the_same_end(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected, record = EXPECTED["replays"][name], read_record(MADE / "curves.csv")
    best, epochs = whole_record(load_sweep(MADE / "replay.yaml", older=record.older), record)
    assert epochs == EXPECTED["replays"]["whole"]
    sweep = load_sweep(MADE / "replay.yaml", expected["changes"], record.older)
    one = simulate(sweep, record, 3, Yardstick(best, sweep.objectives))
    assert [one.finished, one.stopped, one.failed] == expected["ended"]
    assert [one.epochs, one.seconds] == pytest.approx([expected["epochs"], expected["seconds"]])
    assert [list(point) for point in one.progress] == [pytest.approx(point) for point in expected["progress"]]
    found = [[each.configuration, each.label, each.value("search_score")] for each in one.summaries]
    assert [each[:2] for each in found] == [each[:2] for each in expected["configurations"]]
    assert [each[2] for each in found] == pytest.approx([each[2] for each in expected["configurations"]], nan_ok=True)
    changes = [part for change in expected["changes"] for part in ("--set", change)]
    arguments = [str(MADE / "replay.yaml"), "--recorded", str(MADE / "curves.csv"), "--workers", "3", *changes]
    assert simulator.main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == expected["said"]


def shipped(file: str) -> Path:
    """The file as that version shipped it: kept here where the one shipped now asks something else."""
    return MADE / file if (MADE / file).exists() else SHIPPED / file


@pytest.mark.parametrize("file", KEYS)
def test_a_shipped_sweep_has_the_keys_it_had(file: str) -> None:
    expected, sweep = KEYS[file], load_sweep(shipped(file), older=OLDER)
    plan = warm_start.planned(sweep, Planner(sweep, lambda run: Counts(1000, 10, 10**6, 4000), lambda run: 1000))
    trials = plan.trials or plan.examples
    assert [len(plan.configurations), plan.expected_trials] == [expected["configurations"], expected["trials"]]
    assert [[one.id, one.label] for one in plan.configurations[:20]] == expected["first"]
    assert [trial.key for trial in trials[:20]] == expected["keys"]
    assert trials[-1].key == expected["last"]
    if plan.adaptive:
        proposer = propose(plan, None)
        assert [one and one.id for one in (proposer.suggest() for _ in range(3))] == expected["proposed"]


@pytest.mark.parametrize("file", [file for file in KEYS if "counted" in KEYS[file]])
def test_a_shipped_sweep_is_counted_as_it_was(file: str) -> None:
    expected, plan = KEYS[file]["counted"], warm_start.planned(load_sweep(shipped(file), older=OLDER))
    assert plan.expected_trials == expected["trials"]
    found = [[one.id, one.counts.trainable_parameters] for one in (plan.configurations or plan.probed)]
    assert found == expected["configurations"]
    assert [one.configuration.id for one in plan.dropped] == expected["dropped"]
