"""A trial inside a worker, without Ray: what it shares, where it starts from, what it reports, what it leaves."""

from __future__ import annotations

import gc
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from craft.results import Counts, Leave, Progress, RunResult, Train, is_out_of_memory
from craft.settings import WarmStart
from craft.spec import BUDGET, RunSpec
from craft.trainer.adapter_folder import write_record
from craft.trainer.checkpoint import verify, write_folder
from craft.watch import watch
from orchestrator.plan.configuration import flat_parameters
from orchestrator.plan.trial import Job, PlannedTrial, TrialResult
from orchestrator.worker import worker
from orchestrator.worker.share import GpuFailed
from orchestrator.worker.surroundings import WorkerSettings, _scratch, scratch_folder, stderr_left
from orchestrator.worker.worker import work

SPEC = PlannedTrial(RunSpec(model="m", task="toy/paraphrase", method="lora"), "c0ffee", "LoRA")
SHRUNK = SPEC.run.model_copy(update={"training": SPEC.run.training.in_smaller_batches(scoring=True)})
"""The run of a stored adapter, whose memory ran out once."""


def settings(tmp_path: Path, train: Train | None = None, **more: Any) -> WorkerSettings:
    return WorkerSettings(str(tmp_path / "storage"), str(tmp_path / "scratch"), 1, train=train, **more)


def ended(directory: Path) -> RunResult:
    (directory / "adapter").mkdir()
    (directory / "adapter" / "weights").write_text("w")
    (directory / "predictions").mkdir()
    (directory / "predictions" / "boolq.jsonl").write_text("{}")
    return RunResult({"score": 70.0}, Counts(10, 2, 100, 40), directory / "adapter", 1, 2, 1.0)


def trains(seen: list[Any]) -> Train:
    """A training of one evaluation, which writes down what it is and where it starts from."""

    def train(spec: RunSpec, directory: Path, *, report: Callable, resume_from: Path | None, **_: Any) -> RunResult:
        seen.append((spec, resume_from))
        report(Progress(1, 2, 0.5, {"search_score": 51.0}, [{"step": 1, "train_loss": 2.0}]))
        return ended(directory)

    return train  # type: ignore[return-value]


def run(settings: WorkerSettings, key: str = SPEC.key, job: Job | None = None) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Works, and gives each report with the files of its checkpoint as they were then."""
    reports = []

    def report(metrics: dict[str, Any], folder: Path | None) -> None:
        files = {}
        if folder is not None:
            files = {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}
            verify(folder)
        reports.append((metrics, files))

    work(key, json.dumps((job or Job(SPEC)).to_json()), settings, report)
    return reports


def last_of(reports: list[tuple[dict[str, Any], dict[str, str]]]) -> list[TrialResult]:
    return [TrialResult.from_json(result) for result in reports[-1][0]["results"]]


def store(tmp_path: Path, attempt: int, number: int, text: str, name: str = "state.json", key: str = SPEC.key) -> Path:
    def fill(folder: Path) -> None:
        (folder / name).write_text(text)
        (folder / "adapter").mkdir()
        write_record(folder / "adapter", {"spec": SHRUNK.model_dump(mode="json")})

    return write_folder(tmp_path / "storage" / f"attempt-{attempt}" / key / f"checkpoint_{number:06}", fill)


def test_it_reports_progress_then_its_result_with_a_sealed_adapter(tmp_path: Path) -> None:
    reports = run(settings(tmp_path, trains([])))
    (first, none), (_, files) = reports
    assert first["progress"]["metrics"]["search_score"] == 51.0
    assert first["progress"]["points"] == [{"step": 1, "train_loss": 2.0}]
    assert none == {}
    (result,) = last_of(reports)
    assert result.metrics == {"score": 70.0}
    assert (files["adapter/weights"], files["predictions/boolq.jsonl"]) == ("w", "{}")
    assert TrialResult.from_json(json.loads(files["result.json"])) == result
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_gpu_that_fails_is_tried_for_ten_minutes_and_not_given_to_the_next_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, works_at = 0.0, 400.0

    def require_gpu(_: WorkerSettings) -> None:
        if now < works_at:
            raise GpuFailed("h gave a GPU that torch cannot use: uncorrectable ECC error")

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(WorkerSettings, "require_gpu", require_gpu)
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: now, time=time.time, sleep=sleep))
    reports = run(settings(tmp_path, trains([])))
    assert "uncorrectable ECC error" in reports[0][0]["outlook"]["phase"]
    assert last_of(reports)[0].status == "finished"
    now, works_at = 0.0, 2000.0
    with pytest.raises(GpuFailed):
        run(settings(tmp_path / "other", trains([])))
    assert 600 <= now < 620


def test_a_worker_gives_a_sign_while_it_prepares_and_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = worker.time.monotonic()

    def train(spec: Any, directory: Path, *, on_step: Callable[[int, int], None], **calls: Any) -> Any:
        nonlocal now
        monkeypatch.setattr(worker.time, "monotonic", lambda: now)
        for step in range(20):
            now += 10
            watch() if step < 10 else on_step(step, 20)
        return trains([])(spec, directory, on_step=on_step, **calls)

    reports = [report for report, _ in run(settings(tmp_path, train, heartbeat_seconds=100.0))]
    assert 3 <= reports.count({"alive": True}) <= 4
    assert "results" in reports[-1]
    assert {"alive": True} not in [report for report, _ in run(settings(tmp_path / "none", train))]


def test_an_interrupted_attempt_that_ends_late_leaves_the_next_one_its_files(tmp_path: Path) -> None:
    """A resumed sweep may start a trial again before its earlier process has come to its end."""
    before, after = (_scratch(settings(tmp_path), SPEC.key) for _ in range(2))
    earlier = before.__enter__()
    with after as folder:
        assert not earlier.exists(), "what an attempt leaves does not pile up"
        before.__exit__(None, None, None)
        assert (folder / "run").is_dir()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_it_starts_from_the_newest_whole_checkpoint_of_all_attempts(tmp_path: Path) -> None:
    seen: list[Any] = []
    store(tmp_path, 2, 9, "old")
    good = store(tmp_path, 10, 1, "good")
    torn = store(tmp_path, 10, 2, "torn")
    (torn / "state.json").write_text("tor")
    (tmp_path / "storage" / "attempt-10" / SPEC.key / "checkpoint_000003").mkdir()
    (result,) = last_of(run(settings(tmp_path, trains(seen))))
    assert seen == [(SPEC.run, good)]
    assert result.notes == ["2 damaged checkpoints were passed over on resuming"]


def test_a_trial_starts_from_the_finished_adapter_that_it_names(tmp_path: Path) -> None:
    start, seen = WarmStart(run="0" * 16), list[Any]()
    trial = replace(SPEC, run=SPEC.run.model_copy(update={"warm_start": start}))
    assert flat_parameters(trial.run)["warm_start"] == start.run
    store(tmp_path, 1, 1, "unfinished", key=start.run)
    (result,) = last_of(run(settings(tmp_path, trains(seen)), trial.key, Job(trial)))
    assert (result.status, result.retryable, seen) == ("failed", True, []), "it is not this trial's fault"
    assert start.run in str(result.error)
    source = json.dumps(TrialResult(start.run, "finished").to_json())
    place = store(tmp_path, 1, 2, source, "result.json", start.run)
    (result,) = last_of(run(settings(tmp_path, trains(seen)), trial.key, Job(trial)))
    ((spec, _),) = seen
    assert (result.status, spec.key, spec.warm_start.adapter) == ("finished", trial.key, str(place / "adapter"))


def stepping(last: int) -> Train:
    """A training with an evaluation and a checkpoint at each step."""

    def train(spec: RunSpec, directory: Path, *, report: Callable, resume_from: Path | None, on_step: Callable) -> RunResult:
        first = json.loads((resume_from / "state.json").read_text()) if resume_from else 0
        for step in range(first + 1, last + 1):
            folder = directory / f"checkpoint-{step}"
            write_folder(folder, lambda f, step=step: (f / "state.json").write_text(str(step)) and None)
            try:
                on_step(step, last)
            except Leave:
                report(Progress(step, last, step / 2, {}, [], folder))
                raise
            report(Progress(step, last, step / 2, {"search_score": 50.0 + step}, [{"step": step}], folder))
        return ended(directory)

    return train


def test_a_trial_that_must_leave_stores_its_step_with_all_it_has_told_and_has_no_result(tmp_path: Path) -> None:
    heard: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def report(metrics: dict[str, Any], folder: Path | None) -> None:
        verify(folder)
        heard.append((metrics, {file.name: json.loads(file.read_text()) for file in folder.glob("*.json")}))

    answers = iter([None, "the machine it ran on was taken away"])
    with pytest.raises(Leave, match="taken away"):
        work(SPEC.key, json.dumps(Job(SPEC).to_json()), settings(tmp_path, stepping(3)), report, lambda: next(answers))
    (evaluation, _), (left, files) = heard
    assert left == {"left_at": 2}
    assert files["state.json"] == 2
    assert files["evaluations.json"] == [evaluation]


def test_what_a_dead_driver_may_not_have_heard_is_told_again(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def run_until(stop: int | str) -> list[int | str]:
        """What is reported, until the driver dies at its word of step `stop`, which then lies on storage."""
        heard: list[int | str] = []
        place = tmp_path / "storage" / "attempt-1" / SPEC.key

        def report(metrics: dict[str, Any], folder: Path | None) -> None:
            step = metrics["progress"]["step"] if "progress" in metrics else metrics["results"][0]["status"]
            if folder is not None:
                shutil.copytree(folder, place / f"checkpoint_{len(list(place.glob('*'))):06}")
                if step == stop:
                    raise Killed
            heard.append(step)

        try:
            work(SPEC.key, json.dumps(Job(SPEC).to_json()), settings(tmp_path, stepping(2)), report)
        except Killed:
            heard.append("killed")
        return heard

    assert run_until(1) == ["killed"]
    assert run_until(2) == [1, "killed"]
    assert run_until("finished") == [1, 2, "killed"]
    assert run_until(0) == [1, 2, "finished"]


def test_a_stored_result_is_not_trained_again_and_a_size_that_it_lacks_is_cut_in_smaller_batches_or_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the training itself does when memory runs out; what no machine can do is settled."""
    result, seen, tried = TrialResult(SPEC.key, "finished", {"score": 70.0}), list[Any](), list[int]()
    store(tmp_path, 1, 3, json.dumps(result.to_json()), "result.json")
    reports = run(settings(tmp_path, trains(seen)))
    assert (last_of(reports), len(reports), seen) == ([result], 1, [])
    assert "result.json" in reports[0][1]

    def cut_and_score(adapter: Path, to: str, place: Path, *, recovery: float, spec: RunSpec) -> tuple[None, RunResult]:
        tried.append(spec.training.eval_batch_size)
        if to.endswith("7"):
            raise ValueError("one direction takes 8")
        if len(tried) == 1:
            error = MemoryError("no memory")
            error.scoring = True  # type: ignore[attr-defined]
            raise error
        place.mkdir(parents=True)
        return None, ended(place)

    monkeypatch.setattr("craft.trainer.cuts.cut_and_score", cut_and_score)
    sizes = tuple(PlannedTrial(SPEC.run.cut_to(f"{BUDGET}{size}", 0.1), f"c{size}", "LoRA") for size in (20, 7))
    training, cut, failed = last_of(run(settings(tmp_path, trains(seen)), job=Job(SPEC, sizes)))
    assert (tried, seen) == ([32, 16, 16], [])
    assert (training.status, cut.status) == ("finished", "finished")
    assert cut.notes == ["evaluation batches of 16 after memory ran out"]
    assert (failed.status, failed.settled, failed.error) == ("failed", True, "one direction takes 8")


def test_other_code_on_the_worker_is_told_from_a_bad_trial(tmp_path: Path) -> None:
    (result,) = last_of(run(settings(tmp_path, trains([])), key="0123456789abcdef"))
    assert (result.status, result.retryable) == ("failed", True)
    assert "another version of this code" in str(result.error)


@pytest.mark.slow
def test_a_greedy_trial_runs_out_of_memory_alone(tmp_path: Path) -> None:
    """What it takes counts, in numpy and torch; a file of weights that is only mapped does not."""
    before, share, refused = resource.getrlimit(resource.RLIMIT_DATA), 512 * 2**20, list[Exception]()
    save_file({f"layer{number}": torch.full((share // 8,), float(number)) for number in range(3)}, tmp_path / "weights")

    def greedy(spec: RunSpec, directory: Path, **_: Any) -> RunResult:
        weights = load_file(tmp_path / "weights")
        assert sum(float(weights[name][-1]) for name in weights) == 3.0
        for take in (lambda size: np.empty(size, np.uint8), lambda size: torch.empty(size, dtype=torch.uint8)):
            assert len(take(share // 4)) == share // 4
            try:
                take(share * 3 // 2)
            except (MemoryError, RuntimeError) as error:
                refused.append(error)
        raise refused[-1]

    gc.collect()  # what is freed later would be room
    (result,) = last_of(run(settings(tmp_path, greedy, memory_bytes=share)))
    assert [is_out_of_memory(error) for error in refused[:2]] == [True, True], result.error
    assert result.status == "failed"
    assert "tried micro-batches of" in str(result.error)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert "from_file" not in vars(torch.UntypedStorage)


@pytest.mark.slow
@pytest.mark.parametrize(("pauses", "seconds", "code"), [([2.0], 0.3, 1), ([0.3] * 12, 2.0, 0)])
def test_a_process_that_hangs_without_the_interpreter_is_ended(
    tmp_path: Path, pauses: list[float], seconds: float | None, code: int
) -> None:
    # libc's sleep called with the interpreter's lock held: no Python thread could end this. A tick after each pause, as after
    # each decomposition while a method is built, is a sign of life.
    script = f"""
import ctypes, sys
from pathlib import Path
from craft.watch import watch
from tests.orchestrator.worker.test_worker import run, settings
def train(*arguments, **named):
    for pause in {pauses}:
        ctypes.PyDLL(None).usleep(int(pause * 1e6))
        watch()
    raise ValueError("woke up")
run(settings(Path(sys.argv[1]), train, heartbeat_seconds={seconds}))
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=120)
    assert done.returncode == code
    left = stderr_left(tmp_path / "scratch", SPEC.key)
    assert (left is not None) == (code == 1)
    if left is not None:
        assert "in train" in left.read_text()


HOLD = (
    "from orchestrator.worker.surroundings import scratch_folder\n"
    "with scratch_folder('trial') as folder:\n"
    "    (folder / 'file').write_text('x'); print(folder, flush=True); input()\n"
)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files are the test's own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.mark.usefixtures("temporary")
def test_a_folder_is_removed_when_it_is_left_and_that_of_a_killed_process_with_the_next(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        theirs = Path(other.stdout.readline().strip())
        with scratch_folder("trial") as folder:
            assert (theirs / "file").exists(), "its process lives"
            assert folder.is_relative_to(tmp_path)
            assert folder.parent.stat().st_mode & 0o777 == 0o700
            (folder / "file").write_text("x")
        assert not folder.exists()
        other.kill()
    assert (theirs / "file").exists()
    with scratch_folder("trial"):
        assert not theirs.exists()


@pytest.mark.usefixtures("temporary")
def test_a_folder_that_somebody_else_put_there_is_not_used(tmp_path: Path) -> None:
    with scratch_folder("trial") as folder:
        trap = folder.parent
    (tmp_path / "theirs").mkdir()
    (trap / ".lock").unlink()
    trap.rmdir()
    trap.symlink_to(tmp_path / "theirs")
    with scratch_folder("trial") as folder:
        assert not folder.is_relative_to(tmp_path / "theirs")
        assert folder.parent != trap
