"""What commit 3706dda wrote is read, and its sweep ends as that version would have ended it.

If one of these tests fails, users' folders are no longer read as they were: change the code, not the numbers.
"""

from __future__ import annotations

import functools
import gzip
import json
import shutil
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from craft.results import Counts
from craft.settings import OLDER
from craft.spec import RunSpec
from craft.trainer.adapter_folder import load_adapter
from orchestrator import run as command
from orchestrator import session
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import Train
from orchestrator.record.ledger import Ledger
from orchestrator.record.resume import check_resume, load_as_begun
from orchestrator.review.past_sweep import PastSweep, find_sweep, read_folder
from orchestrator.search.proposers import propose
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.sweep import Sweep

MADE = Path(__file__).parent
SHIPPED = MADE.parent.parent / "sweeps"
EXPECTED: dict[str, Any] = json.loads((MADE / "expected.json").read_text())
KEYS: dict[str, Any] = json.loads((MADE / "keys.json").read_text())
TEXTS = ["a warm and funny film", "dull from start to end", "the plot is clever", "I hated it"]
HERE = "@HERE@"


@dataclass(frozen=True)
class Place:
    """The sweep's folder, as it lay when its driver was killed, and its store."""

    root: Path
    uri: str

    @property
    def folder(self) -> Path:
        return self.root / "runs" / "tpe"

    def sweep(self) -> Sweep:
        return load_as_begun(MADE / "tpe.yaml", [f"storage={self.root / 'runs'}"])


@pytest.fixture(autouse=True)
def own_factor_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decompositions of the model here stay out of the user's cache."""
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for kept, name in (("folders", "runs"), ("artifacts", "mlartifacts")):  # under their own names git passes over them
        shutil.copytree(MADE / kept, tmp_path / name)
    made = Place(tmp_path, f"sqlite:///{tmp_path / 'mlflow.db'}")
    cursor = made.folder / "tracking.cursor.json"  # offsets into a journal whose paths have another length now
    journal = (made.folder / "journal.jsonl").read_bytes()
    offsets = json.loads(cursor.read_text())
    cursor.write_text(
        json.dumps({uri: len(journal[:at].replace(HERE.encode(), bytes(tmp_path))) for uri, at in offsets.items()})
    )
    for file in tmp_path.rglob("*"):
        if file.suffix in (".yaml", ".json", ".jsonl") and HERE in (text := file.read_text()):
            file.write_text(text.replace(HERE, str(tmp_path)))
    dump = gzip.decompress((MADE / "mlflow.sql.gz").read_bytes()).decode().replace(HERE, str(tmp_path))
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        store.executescript(dump)
    return made


def counted(run: RunSpec) -> Counts:
    size = 100 if run.method == "lora" else 60
    return Counts(size, 2, 1000, 4 * size)


def planned(sweep: Sweep) -> Plan:
    return make_plan(sweep, Planner(sweep, counted, lambda run: 1000))


def summed_up(record: PastSweep) -> list[list[Any]]:
    return [[one.configuration, one.label, one.complete, one.on_front] for one in record.summaries]


def test_a_sweep_s_folder_and_its_store_are_read(place: Place, tmp_path: Path) -> None:
    expected = EXPECTED["cut"]
    assert {key: json.loads(json.dumps(one.to_json())) for key, one in Ledger(place.folder).results().items()} == {
        key: json.loads(json.dumps(one).replace(HERE, str(place.root))) for key, one in expected["results"].items()
    }
    record, stored = read_folder(place.folder), find_sweep("tpe", place.uri)
    entries = [[one.key, one.configuration, one.task, one.seed, one.result and one.result.status] for one in record.entries]
    assert entries == expected["entries"]
    assert summed_up(record) == expected["summaries"]
    assert sorted([one.key, one.configuration, one.task, one.seed] for one in stored.entries if one.key) == expected["stored"]
    check_resume(place.folder, place.sweep())  # it is the same sweep
    kept = next(place.folder.glob("ray/attempt-1/*/checkpoint_*/adapter"))
    assert record.fetch(kept.parent.parent.name, tmp_path / "scratch") == kept


def test_a_sweep_that_used_what_was_removed_is_resumed_without_it(place: Place) -> None:
    effective = place.folder / "sweep.yaml"
    content = yaml.safe_load(effective.read_text())
    content["space"].append({"method": "lokr", "rank": 8})
    content["resources"] |= {"workers": 2, "fsdp": True}
    effective.write_text(yaml.safe_dump(content))
    check_resume(place.folder, place.sweep())
    assert summed_up(read_folder(place.folder)) == EXPECTED["cut"]["summaries"]


def test_a_study_is_taken_up_and_goes_on(place: Place) -> None:
    plan = planned(place.sweep())
    proposer = propose(plan, place.folder)
    assert [one.id for one in plan.configurations] == EXPECTED["cut"]["proposed"]
    proposed = proposer.suggest()
    assert proposed is not None
    assert proposed.id not in EXPECTED["cut"]["proposed"], "today's tpe goes on from the results of the earlier one"


def stand_in(log: str) -> Train:
    """The training of the script that made the folder: three epochs with a checkpoint each."""

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
def test_a_sweep_that_was_cut_off_comes_to_the_same_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient
    from rich.console import Console

    client = MlflowClient(place.uri)
    experiment = client.get_experiment_by_name("tpe").experiment_id
    before = {one.info.run_id for one in client.search_runs([experiment], max_results=1000)}
    log = place.root / "tpe.log"
    log.touch()
    monkeypatch.setattr(session, "_prepare", lambda *_: {})
    monkeypatch.setattr(session, "_page", lambda *_: None)
    monkeypatch.setattr(session, "run_sweep", functools.partial(session.run_sweep, train=stand_in(str(log))))
    arguments = [str(MADE / "tpe.yaml"), "--tracking-uri", place.uri, "--storage", str(place.root / "runs")]
    given = command.parser().parse_args([*arguments, "--cpus", "1", "--quiet", "--resume"])
    sweep = load_as_begun(given.sweep, command._overrides(given))
    check_resume(sweep.folder, sweep)
    console = Console(file=sys.stdout, quiet=True)
    assert command._run(given, planned(sweep), sweep.folder, True, console, "again") == 0

    expected, folder = EXPECTED["resumed"], place.folder
    assert log.read_text().splitlines() == expected["trained_after"]  # nothing that was done is done again
    found = {
        key: [one.status, one.metrics, one.steps, [note for note in one.notes if "spared" in note]]
        for key, one in Ledger(folder).results().items()
    }
    assert found == expected["results"]
    summaries = read_folder(folder).summaries
    found_summaries = [[one.configuration, one.on_front, one.complete] for one in summaries]
    assert found_summaries == [[name, *marks] for name, _label, *marks in expected["configurations"]]
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


@pytest.mark.parametrize("method", EXPECTED["adapters"])
def test_an_adapter_gives_the_outputs_that_it_gave(method: str) -> None:
    found = outputs_of(MADE / "adapters" / method)
    torch.testing.assert_close(found, torch.tensor(EXPECTED["adapters"][method]["outputs"]), atol=1e-5, rtol=1e-5)
    content = json.loads((MADE / "adapters" / method / "run.json").read_text())
    assert RunSpec.recorded(content["spec"]).key == EXPECTED["adapters"][method]["key"]


def shipped(file: str) -> Path:
    """The file as that version shipped it: kept here where the one shipped now asks something else."""
    return MADE / file if (MADE / file).exists() else SHIPPED / file


@pytest.mark.parametrize("file", KEYS)
def test_a_shipped_sweep_has_the_keys_it_had(file: str) -> None:
    expected, sweep = KEYS[file], load_sweep(shipped(file), older=OLDER)
    plan = make_plan(sweep, Planner(sweep, lambda run: Counts(1000, 10, 10**6, 4000), lambda run: 1000))
    trials = plan.trials or plan.examples
    assert [len(plan.configurations), plan.expected_trials] == [expected["configurations"], expected["trials"]]
    assert [one.id for one in plan.configurations[:20]] == [first for first, _ in expected["first"]]
    assert [trial.key for trial in trials[:20]] == expected["keys"]
    assert trials[-1].key == expected["last"]


@pytest.mark.parametrize("file", [file for file in KEYS if "counted" in KEYS[file]])
def test_a_shipped_sweep_is_counted_as_it_was(file: str) -> None:
    expected, plan = KEYS[file]["counted"], make_plan(load_sweep(shipped(file), older=OLDER))
    assert plan.expected_trials == expected["trials"]
    found = [[one.id, one.counts.trainable_parameters] for one in (plan.configurations or plan.probed)]
    assert found == expected["configurations"]
    assert [one.configuration.id for one in plan.dropped] == expected["dropped"]
