"""A trial inside a worker, without Ray: what it shares, where it starts from, what it reports, what it leaves."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from craft.factors.store import default_store
from craft.models.files import MINILM
from craft.results import Counts, Leave, Progress, RunResult, Unavailable
from craft.settings import ForgettingSettings, MeasureSettings
from craft.spec import BUDGET, RunSpec
from craft.trainer.checkpoint import verify, write_folder
from orchestrator.plan.trial import Job, PlannedTrial, TrialResult
from orchestrator.sweepfile.resources import Resources
from orchestrator.worker import preparation
from orchestrator.worker.preparation import Shared, prepare
from orchestrator.worker.surroundings import WorkerSettings, _clear, _scratch, stderr_left
from orchestrator.worker.worker import work

SPEC = PlannedTrial(RunSpec(model="m", task="toy/paraphrase", method="lora"), "c0ffee", "LoRA")


def settings(tmp_path: Path, train: Callable | None = None, **more: Any) -> WorkerSettings:
    return WorkerSettings(str(tmp_path / "storage"), str(tmp_path / "scratch"), 1, train=train, **more)


def trains(seen: list[Path | None]) -> Callable:
    def train(spec: RunSpec, directory: Path, *, report: Callable, resume_from: Path | None, on_step: Callable) -> RunResult:
        seen.append(resume_from)
        report(Progress(1, 2, 0.5, {"search_score": 51.0}, [{"step": 1, "train_loss": 2.0}]))
        (directory / "adapter").mkdir()
        (directory / "adapter" / "weights").write_text("w")
        (directory / "predictions").mkdir()
        (directory / "predictions" / "boolq.jsonl").write_text("{}")
        return RunResult({"score": 70.0}, Counts(10, 2, 100, 40), directory / "adapter", 1, 2, 1.0)

    return train


def run(settings: WorkerSettings, key: str = SPEC.key) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Works, and gives each report with the files of its checkpoint as they were then."""
    reports = []

    def report(metrics: dict[str, Any], folder: Path | None) -> None:
        files = (
            {}
            if folder is None
            else {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}
        )
        if folder is not None:
            verify(folder)
        reports.append((metrics, files))

    work(key, json.dumps(Job(SPEC).to_json()), settings, report)
    return reports


def store(tmp_path: Path, attempt: int, number: int, text: str, name: str = "state.json") -> Path:
    folder = tmp_path / "storage" / f"attempt-{attempt}" / SPEC.key / f"checkpoint_{number:06}"
    return write_folder(folder, lambda f: (f / name).write_text(text) and None)


def test_it_reports_progress_then_its_result_with_a_sealed_adapter(tmp_path: Path) -> None:
    (first, none), (last, files) = run(settings(tmp_path, trains([])))
    assert first["progress"]["metrics"]["search_score"] == 51.0
    assert first["progress"]["points"] == [{"step": 1, "train_loss": 2.0}]
    assert none == {}
    assert last["results"][0]["metrics"] == {"score": 70.0}
    assert files["adapter/weights"] == "w"
    assert files["predictions/boolq.jsonl"] == "{}"
    assert TrialResult.from_json(json.loads(files["result.json"])) == TrialResult.from_json(last["results"][0])
    assert list((tmp_path / "scratch").iterdir()) == []


def test_an_interrupted_attempt_that_ends_late_leaves_the_next_one_its_files(tmp_path: Path) -> None:
    """A resumed sweep may start a trial again before its earlier process has come to its end."""
    before, after = (_scratch(settings(tmp_path), SPEC.key) for _ in range(2))
    earlier = before.__enter__()
    with after as folder:
        assert not earlier.exists(), "what an attempt leaves does not pile up"
        before.__exit__(None, None, None)
        assert (folder / "run").is_dir()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_folder_may_go_while_another_trial_clears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([folder / "gone"]))
    _clear(tmp_path)


def test_it_starts_from_the_newest_whole_checkpoint_of_all_attempts(tmp_path: Path) -> None:
    seen: list[Path | None] = []
    store(tmp_path, 2, 9, "old")
    good = store(tmp_path, 10, 1, "good")
    torn = store(tmp_path, 10, 2, "torn")
    (torn / "state.json").write_text("tor")
    (tmp_path / "storage" / "attempt-10" / SPEC.key / "checkpoint_000003").mkdir()
    reports = run(settings(tmp_path, trains(seen)))
    assert seen == [good]
    assert reports[-1][0]["results"][0]["notes"] == ["2 damaged checkpoints were passed over on resuming"]


def test_a_trial_that_must_leave_stores_its_step_with_all_it_has_told_and_has_no_result(tmp_path: Path) -> None:
    def train(spec: RunSpec, directory: Path, *, report: Callable, resume_from: Path | None, on_step: Callable) -> RunResult:
        def stored(step: int) -> Path:
            return write_folder(directory / f"checkpoint-{step}", lambda f: (f / "state.json").write_text(str(step)) and None)

        on_step(1, 3)
        report(Progress(1, 3, 0.5, {"search_score": 51.0}, [], stored(1)))
        try:
            on_step(2, 3)
        except Leave:
            report(Progress(2, 3, 1.0, {}, [], stored(2)))
            raise
        raise AssertionError("it went on")

    heard: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def report(metrics: dict[str, Any], folder: Path | None) -> None:
        verify(folder)
        heard.append((metrics, {file.name: json.loads(file.read_text()) for file in folder.glob("*.json")}))

    answers = iter([None, "the machine it ran on was taken away"])
    with pytest.raises(Leave, match="taken away"):
        work(SPEC.key, json.dumps(Job(SPEC).to_json()), settings(tmp_path, train), report, lambda: next(answers))
    (evaluation, _), (left, files) = heard
    assert left == {"left_at": 2}
    assert files["state.json"] == 2
    assert files["evaluations.json"] == [evaluation]


def test_what_a_dead_driver_may_not_have_heard_is_told_again(tmp_path: Path) -> None:
    def train(spec: RunSpec, directory: Path, *, report: Callable, resume_from: Path | None, on_step: Callable) -> RunResult:
        first = json.loads((resume_from / "state.json").read_text()) if resume_from else 0
        for step in range(first + 1, 3):
            folder = directory / f"checkpoint-{step}"
            write_folder(folder, lambda f, step=step: (f / "state.json").write_text(str(step)) and None)
            report(Progress(step, 2, step / 2, {"search_score": 50.0 + step}, [{"step": step, "train_loss": 2.0}], folder))
        (directory / "adapter").mkdir()
        return RunResult({"score": 70.0}, Counts(10, 2, 100, 40), directory / "adapter", 2, 2, 1.0)

    class Killed(BaseException):
        pass

    def run_until(stop: int) -> list[int | str]:
        """What is reported, until the driver dies at its word of step `stop`, which then lies on storage."""
        heard: list[int | str] = []

        def report(metrics: dict[str, Any], folder: Path | None) -> None:
            step = metrics["progress"]["step"] if "progress" in metrics else metrics["results"][0]["status"]
            if folder is not None:
                number = len(list((tmp_path / "storage" / "attempt-1" / SPEC.key).glob("*")))
                shutil.copytree(folder, tmp_path / "storage" / "attempt-1" / SPEC.key / f"checkpoint_{number:06}")
                if step == stop:
                    raise Killed
            heard.append(step)

        (tmp_path / "storage" / "attempt-1" / SPEC.key).mkdir(parents=True, exist_ok=True)
        try:
            work(SPEC.key, json.dumps(Job(SPEC).to_json()), settings(tmp_path, train), report)
        except Killed:
            heard.append("killed")
        return heard

    assert run_until(1) == ["killed"]
    assert run_until(2) == [1, "killed"]
    assert run_until("finished") == [1, 2, "killed"]  # type: ignore[arg-type]
    assert run_until(0) == [1, 2, "finished"]


def test_a_result_that_was_stored_but_never_written_down_is_reported_not_trained_again(tmp_path: Path) -> None:
    result = TrialResult(SPEC.key, "finished", {"score": 70.0})
    store(tmp_path, 1, 3, json.dumps(result.to_json()), "result.json")
    seen: list[Path | None] = []
    ((metrics, files),) = run(settings(tmp_path, trains(seen)))
    assert seen == []
    assert TrialResult.from_json(metrics["results"][0]) == result
    assert "result.json" in files


def test_a_size_that_is_added_later_is_cut_in_smaller_batches_or_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the training itself does when memory runs out; what no machine can do is settled."""
    store(tmp_path, 1, 3, json.dumps(TrialResult(SPEC.key, "finished", {"score": 70.0}).to_json()), "result.json")
    tried: list[int] = []

    def cut_and_score(adapter: Path, to: str, place: Path, *, recovery: float, spec: RunSpec) -> tuple[None, RunResult]:
        tried.append(spec.training.eval_batch_size)
        if to.endswith("7"):
            raise ValueError("one direction takes 8")
        if len(tried) == 1:
            error = MemoryError("no memory")
            error.scoring = True  # type: ignore[attr-defined]
            raise error
        (place / "adapter").mkdir(parents=True)
        return None, RunResult({"score": 60.0}, Counts(10, 2, 100, 40), place / "adapter", 1, 0, 1.0)

    monkeypatch.setattr("craft.trainer.cuts.cut_and_score", cut_and_score)
    sizes = [PlannedTrial(SPEC.run.cut_to(f"{BUDGET}{size}", 0.1), f"c{size}", "LoRA") for size in (20, 7)]
    reports: list[dict[str, Any]] = []
    job = json.dumps(Job(SPEC, tuple(sizes)).to_json())
    work(SPEC.key, job, settings(tmp_path, trains([])), lambda metrics, folder: reports.append(metrics))
    training, cut, failed = map(TrialResult.from_json, reports[-1]["results"])
    assert tried == [64, 32, 32]
    assert (training.status, cut.status, cut.notes) == (
        "finished",
        "finished",
        ["evaluation batches of 32 after memory ran out"],
    )
    assert (failed.status, failed.settled, failed.error) == ("failed", True, "one direction takes 8")


def test_other_code_on_the_worker_is_told_from_a_bad_trial(tmp_path: Path) -> None:
    ((metrics, _),) = run(settings(tmp_path, trains([])), key="0123456789abcdef")
    assert metrics["results"][0]["status"] == "failed"
    assert metrics["results"][0]["retryable"]
    assert "another version of this code" in metrics["results"][0]["error"]


def test_a_greedy_trial_runs_out_of_memory_alone(tmp_path: Path) -> None:
    def greedy(spec: RunSpec, directory: Path, **_: Any) -> RunResult:
        blocks = [bytearray(64 * 2**20) for _ in range(200)]
        raise AssertionError(f"got {len(blocks)} blocks")

    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = 512 * 2**20
    ((metrics, _),) = run(settings(tmp_path, greedy, memory_bytes=limit))
    assert metrics["results"][0]["status"] == "failed"
    assert "out of memory" in metrics["results"][0]["error"]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize(
    ("pauses", "seconds", "code"), [([2.0], 0.3, 1), pytest.param([0.3] * 12, 2.0, 0, marks=pytest.mark.slow)]
)
def test_a_process_that_hangs_without_the_interpreter_is_ended(
    tmp_path: Path, pauses: list[float], seconds: float | None, code: int
) -> None:
    # libc's sleep called with the interpreter's lock held: no Python thread could end this. A tick after each pause, as after
    # each decomposition while a method is built, is a sign of life.
    script = f"""
import ctypes, json, sys, tempfile
from pathlib import Path
from craft.watch import watch
from craft.spec import BUDGET, RunSpec
from orchestrator.plan.trial import Job, PlannedTrial
from orchestrator.worker.surroundings import WorkerSettings, stderr_left
from orchestrator.worker.worker import work
spec = PlannedTrial(RunSpec(model="m", task="toy/paraphrase", method="lora"), "c", "l")
def train(*arguments, **named):
    for pause in {pauses}:
        ctypes.PyDLL(None).usleep(int(pause * 1e6))
        watch()
    raise ValueError("woke up")
folder = sys.argv[1]
settings = WorkerSettings(folder + "/storage", folder + "/scratch", 1, {seconds}, None, train)
work(spec.key, json.dumps(Job(spec).to_json()), settings, lambda *_: None)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=120)
    assert done.returncode == code
    left = stderr_left(tmp_path / "scratch", SPEC.key)
    assert (left is not None) == (code == 1)
    if left is not None:
        assert "in train" in left.read_text()


def trial(method: str, task: str = "toy/sentiment", resources: dict[str, Any] | None = None, **parameters: Any) -> PlannedTrial:
    run = RunSpec(model=MINILM, task=task, method=method, parameters=parameters, seed=parameters.pop("seed", 0))
    return PlannedTrial(run, "c", "l", Resources(**(resources or {})))


def test_each_task_and_each_base_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [trial("craft", ranks=["all", 8, 16]), trial("milora", task="toy/paraphrase", rank=8), trial("lora", rank=300)]
    tasks, bases = list[str](), list[RunSpec]()
    monkeypatch.setattr(preparation, "_fingerprint", lambda run: tasks.append(run.task) or "f")
    monkeypatch.setattr(preparation, "_prepare_base", lambda run, elsewhere: bases.append(run))
    prepare([*trials, *trials])
    assert tasks == ["toy/sentiment", "toy/paraphrase"]
    assert len(bases) == 1


def test_the_text_of_forgetting_is_told_under_the_name_that_a_result_gives_it(tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("some words")
    run = trial("lora", rank=2).run.model_copy(
        update={"measure": MeasureSettings(forgetting=ForgettingSettings(text=str(text)))}
    )
    trials = [PlannedTrial(run, "c", "l", Resources())]
    digests = prepare(trials)
    assert digests[str(text)] == hashlib.sha256(b"some words").hexdigest()
    text.unlink()
    with pytest.raises(ValueError, match=r"mine\.txt cannot be read"):
        prepare(trials)


def test_preparation_names_the_data_and_the_model_and_decomposes_nothing() -> None:
    makes = default_store().makes
    assert prepare([trial("craft", ranks=["all", 4, 4], projections=["q"])]).keys() == {"toy/sentiment", MINILM}
    assert default_store().makes == makes


def test_a_model_that_is_not_there_is_refused_before_anything_else(tmp_path: Path) -> None:
    run = RunSpec(model=str(tmp_path / "absent"), task="toy/sentiment", method="lora")
    with pytest.raises(ValueError, match="does not exist"):
        prepare([PlannedTrial(run, "c", "l")])


def test_a_machine_with_other_data_than_the_drivers_trains_nothing(tmp_path: Path) -> None:
    """On the driver of a cluster the data and the model's configuration are read, and nothing is decomposed."""
    one = trial("craft", ranks=["all", 4, 4], projections=["q"])
    before = default_store().makes
    digests = prepare([one], elsewhere=True)
    assert default_store().makes == before
    with Shared(digests, True).there(one.run):
        pass
    other = {"toy/sentiment": "0" * 64}
    with Shared(other, False).there(one.run):
        pass
    with pytest.raises(Unavailable, match=f"has other data of {MINILM} than the sweep"):
        Shared({MINILM: "0" * 64}, False).there(one.run).__enter__()  # it was trained on in place while the sweep runs
    with pytest.raises(Unavailable, match="has other data of toy/sentiment than the sweep"):
        Shared(other, True).there(one.run).__enter__()
