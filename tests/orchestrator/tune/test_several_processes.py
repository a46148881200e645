"""Trials of several processes under real Ray: what one of them meets ends all, and the sweep has the undisturbed numbers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from craft.results import Train
from craft.trainer.training import train_run
from orchestrator.plan.plan import make_plan
from orchestrator.plan.trial import Job
from orchestrator.sweepfile.load import load_sweep
from tests.orchestrator.conftest import Cli
from tests.orchestrator.plans import toy_plan
from tests.orchestrator.recorded import results_of
from tests.orchestrator.stand_in import ROOT, ray_cluster, run_sweep, wait_for
from tests.orchestrator.tune.test_faults import stored

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("without_token")]

STEPS = 6
FAULTS = {1: "killed", 2: "hung", 3: "memory", 4: "none"}


def sweep_file(folder: Path, model: str, ranks: str, steps: int = STEPS, **resources: Any) -> Path:
    share = {"cpu": 0.25, "processes": 2, "heartbeat_minutes": 0.6} | resources
    file = folder / "sweep.yaml"
    file.write_text(
        f"name: test\nmodel: {model}\ntasks: [toy/sentiment]\nseeds: [0]\nstorage: {folder}\n"
        f"training: {{max_steps: {steps}, batch_size: 4, train_examples: 24, eval_examples: 24, max_length: 32}}\n"
        f"space: [{{method: lora, rank: {ranks}, learning_rate: 0.001}}]\n"
        f"resources: {json.dumps(share)}\n"
    )
    return file


def faulty(folder: str, faults: dict[int, str]) -> Train:
    """`train_run` whose second process meets its fault once, in step 3; workers get it by value."""

    def train(spec, directory, *, on_step, **calls):
        import os
        import time
        from pathlib import Path

        from craft.processes import current
        from craft.trainer.training import train_run

        rank = spec.parameters["rank"]
        how, place = faults[rank], current().rank
        with (Path(folder) / "pids").open("a") as file:
            file.write(f"{os.getpid()} {place} {rank}\n")

        def end_step(step, total):
            on_step(step, total)
            mark = Path(folder) / how
            if how != "none" and place == 1 and step == 3 and not mark.exists():
                mark.touch()
                if how == "killed":
                    os.kill(os.getpid(), 9)
                if how == "hung":
                    time.sleep(600)
                raise MemoryError("Cannot allocate memory")

        return train_run(spec, directory, on_step=end_step, **calls)

    return train


def living(folder: Path) -> list[int]:
    pids = [int(line.split()[0]) for line in (folder / "pids").read_text().splitlines()]
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def test_a_process_that_dies_hangs_or_runs_out_of_memory_ends_all_and_the_trial_continues(
    tmp_path: Path, tiny_bert: str
) -> None:
    plan = make_plan(load_sweep(sweep_file(tmp_path, tiny_bert, "{values: [1, 2, 3, 4]}", cpu=0.5, heartbeat_minutes=1.5)))
    undisturbed = {trial.key: train_run(trial.run, tmp_path / trial.key).metrics for trial in plan.trials}
    outcome = run_sweep(plan, tmp_path / "test", cpus=2, quiet=True, max_failures=1, train=faulty(str(tmp_path), FAULTS))
    results = results_of(outcome)
    for key, metrics in undisturbed.items():
        assert results[key].status == "finished", results[key].error
        assert results[key].metrics == pytest.approx(metrics, abs=1e-3)
        assert "trained by 2 processes (replicate)" in results[key].notes
    notes = {trial.run.parameters["rank"]: " ".join(results[trial.key].notes) for trial in plan.trials}
    assert [rank for rank, note in notes.items() if "micro-batches of 2 x 2" in note] == [3]
    wait_for(lambda: not living(tmp_path), seconds=30)


def test_check_takes_a_step_in_the_processes_of_a_trial_and_tells_what_stopped_it(
    tmp_path: Path, tiny_bert: str, cli: Cli
) -> None:
    from orchestrator.tune.cluster import joined
    from orchestrator.tune.crew import try_steps

    file = sweep_file(tmp_path, tiny_bert, "2")
    assert re.search(
        r"2 processes\W+took a step of LoRA .*together",
        cli("check", str(file), "--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db").out,
    )

    def unshared(run):
        raise ValueError(f"{run.task} is not on this machine")

    (trial,) = make_plan(load_sweep(file)).trials
    with joined(None, 2):
        assert "toy/sentiment is not on this machine" in str(try_steps(Job(trial), unshared, 120))


@pytest.mark.parametrize("everywhere", [False, True], ids=["a signal to the driver", "Ctrl-C in a terminal"])
def test_after_an_interrupt_no_process_is_left_and_the_sweep_continues(
    tmp_path: Path, tiny_bert: str, everywhere: bool
) -> None:
    file = sweep_file(tmp_path, tiny_bert, "2", steps=300)
    (trial,) = make_plan(load_sweep(file)).trials
    undisturbed = train_run(trial.run, tmp_path / "undisturbed").metrics
    code = "import sys; from orchestrator.commands.app import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "run", str(file), "--cpus", "2"]
    command += ["--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db"]
    driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    processes: list[psutil.Process] = []

    def follows() -> bool:
        processes[:] = psutil.Process(driver.pid).children(recursive=True)
        with suppress(psutil.Error):  # one may end meanwhile
            return any("_Follower.follow" in " ".join(each.cmdline()) for each in processes)
        return False

    wait_for(lambda: bool(stored(tmp_path)) and follows(), seconds=120)
    os.killpg(driver.pid, signal.SIGINT) if everywhere else driver.send_signal(signal.SIGINT)
    assert driver.wait(60) == 130
    _gone, left = psutil.wait_procs(processes, timeout=20)
    assert not left
    subprocess.run([*command, "--resume"], cwd=ROOT, check=True, timeout=200, stdout=subprocess.DEVNULL)
    (result,) = results_of(tmp_path / "test").values()
    assert result.facts["resumed_at"][0] > 0
    assert result.metrics == pytest.approx(undisturbed, abs=1e-3)


def sharing(log: str) -> Train:
    """A stand-in that writes a line in each process: its machine, its rank, its GPU and the rows that it reads."""

    def train(spec, directory, *, report, resume_from, on_step, cuts=()):
        import time
        from pathlib import Path

        import ray

        from craft.processes import current
        from craft.results import Counts, RunResult

        group = current()
        context = ray.get_runtime_context()
        row = (spec.key, context.get_node_id(), group.rank, group.count, *ray.get_gpu_ids(), *group.share([*range(8)]))
        with Path(log).open("a") as file:
            file.write(" ".join(map(str, row)) + "\n")
        time.sleep(0.2)
        assert sum(group.gather(1)) == group.count
        adapter = directory / "adapter"
        adapter.mkdir(parents=True)
        return RunResult({"score": 1.0}, Counts(10, 2, 100, 40), adapter, 1, 1, 1.0)

    return train


def test_trials_of_one_two_and_four_gpus_share_two_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    space = "".join(
        f"  - {{method: {method}, rank: {{values: {[*range(1, many + 1)]}}}, resources: {{gpu: {gpus}, cpu: 1}}}}\n"
        for method, gpus, many in (("lora", 1, 24), ("dora", 2, 12), ("rslora", 4, 4))
    )
    plan = toy_plan(tmp_path, f"name: test\nseeds: [0]\nstorage: {tmp_path}\nspace:\n{space}")
    log = tmp_path / "log"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")  # Ray starts no node with more than it lists
    with ray_cluster(*[{"num_cpus": 4, "num_gpus": 4}] * 2) as cluster:
        outcome = run_sweep(plan, tmp_path / "test", address=cluster.address, quiet=True, train=sharing(str(log)))
        left = ray.util.placement_group_table() if ray.is_initialized() else []
    assert Counter(result.status for result in results_of(outcome).values()) == {"finished": 40}
    assert not left
    trials = defaultdict[str, list[list[str]]](list)
    for key, *line in map(str.split, log.read_text().splitlines()):
        trials[key].append(line)
    for rows in trials.values():
        count = int(rows[0][2])
        assert sorted(int(row[1]) for row in rows) == [*range(count)]
        assert len({row[0] for row in rows}) == 1, "one machine"
        assert len({row[3] for row in rows}) == count, "each process has a GPU of its own"
        assert sorted(int(row) for each in rows for row in each[4:]) == [*range(8)], "each reads other examples"
    assert Counter(int(rows[0][2]) for rows in trials.values()) == {1: 24, 2: 12, 4: 4}
