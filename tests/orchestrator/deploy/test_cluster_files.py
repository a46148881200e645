"""The files of `orchestrator/deploy`: their structure, and the Slurm script with a stub that refuses what Slurm refuses.
`test_slurm` runs it on a real one."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.orchestrator.commands.test_commands import parse
from tests.orchestrator.stand_in import ROOT, wait_for

FOLDER = ROOT / "orchestrator" / "deploy"
SLURM = FOLDER / "slurm.sbatch"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def pods(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    cluster = job["spec"]["rayClusterSpec"]
    groups = {"head": cluster["headGroupSpec"], **{group["groupName"]: group for group in cluster["workerGroupSpecs"]}}
    return {name: group["template"]["spec"] for name, group in groups.items()}


def test_the_rayjob_resumes_on_storage_that_every_pod_mounts() -> None:
    claim, job = documents("kuberay.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    arguments = shlex.split(job["spec"]["entrypoint"].split("craft-sweeps run", 1)[1])
    parse(["run", *arguments])
    assert "--resume" in arguments
    assert "CRAFT_CONTINUE" in yaml.safe_load(job["spec"]["runtimeEnvYAML"])["env_vars"], "or the first start is refused"
    storage = arguments[arguments.index("--storage") + 1]
    for name, pod in pods(job).items():
        (container,) = pod["containers"]
        mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        (source,) = [mounted[path] for path in mounted if storage.startswith(f"{path}/")]
        assert volumes[source]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"], name
        assert pod["securityContext"]["runAsNonRoot"] is True
        environment = {one["name"]: one for one in container["env"]}
        for secret in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "HF_TOKEN"):
            assert "secretKeyRef" in environment[secret]["valueFrom"], secret


def test_files_keep_to_what_kubernetes_and_the_rayjobs_operator_know() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    claim, job = documents("kuberay.yaml")
    known = kubernetes.latest_version()
    for document in (claim, *documents("mlflow.kubernetes.yaml")):
        kubernetes.validate(document, known, strict=True)
    spec = job["spec"]
    cluster = spec["rayClusterSpec"]
    # Pods submit the job by the head's dashboard, so it may not listen on loopback alone; the token is its lock.
    assert cluster["authOptions"] == {"mode": "token"}
    groups = cluster["headGroupSpec"], *cluster["workerGroupSpecs"]
    for group in groups:
        assert "dashboard-host" not in group["rayStartParams"]
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    for template in (spec["submitterPodTemplate"], *(group["template"] for group in groups)):
        kubernetes.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {}, **template}, known, strict=True)
    assert set(yaml.safe_load(spec["runtimeEnvYAML"])) <= {"env_vars", "working_dir", "pip", "py_modules"}


def test_a_pod_that_is_to_end_is_drained_within_its_grace() -> None:
    from ray.scripts.scripts import cli

    _, job = documents("kuberay.yaml")
    pod = pods(job)["gpu-spot"]
    (container,) = pod["containers"]
    ray, drain, *given = container["lifecycle"]["preStop"]["exec"]["command"]
    assert (ray, drain) == ("ray", "drain-node")
    drained = cli.commands["drain-node"].make_context("drain-node", given).params
    assert drained["reason"] == "DRAIN_NODE_REASON_PREEMPTION"
    assert drained["deadline_remaining_seconds"] < pod["terminationGracePeriodSeconds"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert float(environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]) < pod["terminationGracePeriodSeconds"]


def test_commands_in_the_heads_of_files_are_commands_that_exist() -> None:
    shown = SLURM.read_text()
    (shared,) = re.findall(r'"\$\{command\[@\]\}" (.*?) "\$@" &\n', shown)
    for name, options in re.findall(r"command=\((run|check) (.*?)\)\n", shown):
        parse([name, *shlex.split(f"{options.replace('${#machines[@]}', '2')} {shared}")])
    (look,) = re.findall(r"craft-sweeps check (.*?)`", (FOLDER / "kuberay.yaml").read_text().replace("\n# ", " "))
    parse(["check", *shlex.split(look)])


def test_the_tracking_server_has_a_password_a_database_and_a_door_to_this_machine_only() -> None:
    (compose,) = documents("mlflow.compose.yaml")
    services = compose["services"]
    ports = {name: service.get("ports", []) for name, service in services.items()}
    assert ports.pop("mlflow") == ["127.0.0.1:5000:5000"]
    assert not any(ports.values())
    server = services["mlflow"]
    assert "--app-name basic-auth" in server["command"]
    (folder,) = re.findall(r"--artifacts-destination (\S+)", server["command"])
    assert folder in {volume.partition(":")[2] for volume in server["volumes"]}, "adapters outlive the container"
    image = (FOLDER / "Dockerfile").read_text().partition("\nFROM rayproject")[0]
    assert f"AS {server['build']['target']}\n" in image
    assert f"-o mlflow {folder}" in image, "the server's user may write there"
    assert server["environment"]["MLFLOW_BACKEND_STORE_URI"].startswith("postgresql://")
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            if "PASSWORD" in name or "SECRET" in name:
                assert str(value).startswith("${"), f"{name} stands in the file"
        for needed in service.get("depends_on", {}):
            assert needed in services


@pytest.mark.slow
def test_mlflows_server_takes_the_flags_of_the_compose_file() -> None:
    from click.testing import CliRunner
    from mlflow.cli import cli

    (compose,) = documents("mlflow.compose.yaml")
    *_, server = documents("mlflow.kubernetes.yaml")
    (_, shell) = server["spec"]["template"]["spec"]["containers"][0]["args"][0].split("exec ")
    words = shlex.split(compose["services"]["mlflow"]["command"])
    assert shlex.split(shell.replace("\\\n", " ")) == words
    known = CliRunner().invoke(cli, ["server", "--help"]).output
    command = cli.commands["server"]  # type: ignore[attr-defined]
    options = {name for one in command.params for name in one.opts}
    assert {word for word in words if word.startswith("--")} <= options, known


SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.skipif(SHELLCHECK is None, reason="needs shellcheck")
def test_shellcheck_has_nothing_to_say() -> None:
    done = subprocess.run([str(SHELLCHECK), SLURM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def scheduler(folder: Path, driver: str) -> dict[str, str]:
    """An environment with a Slurm that is a few shell scripts, and `driver` as what the sweep's process does.

    `state` in the folder is the job's state by Slurm, and `preempted` says that Slurm has preempted it. As Slurm itself, it
    refuses to requeue a job that does not run, and to signal its steps.
    """
    binaries = folder / "bin"
    binaries.mkdir()
    (folder / "state").write_text("RUNNING\n")
    log = f'echo "$(basename "$0") $*" >> {folder}/calls\n'
    runs = f"grep -q RUNNING {folder}/state || {{ echo 'slurm_error: Job is not running' >&2; exit 1; }}\n"
    scripts = {
        "srun": log + 'while [[ $1 == --* ]]; do shift; done\nexec "$@"',
        "squeue": log + f"cat {folder}/state",
        "scontrol": log
        + f"""case $1$2 in
            showhostnames) printf "node1\\nnode2\\n" ;;
            showconfig) cat {folder}/config 2> /dev/null || echo "ProctrackType = proctrack/cgroup" ;;
            showjob) [ ! -e {folder}/preempted ] || {{ echo "PreemptTime=2026-11-25T09:47:03"; sleep 0.1; }}
                echo "   Nodes=node[1-2] CPU_IDs=0-3 Mem=8192 GRES="
                echo "   Command=/home/me/slurm.sbatch$ARGUMENTS" ;;
            requeue*) {runs} ;;
        esac""",
        # A node's `ray start`: on SIGTERM its trials leave, which takes a moment, and it ends.
        "ray": log
        + '[ "$1" = status ] && exit\n[[ $* == *--head* ]] && exec sleep 300\n'
        + f"echo $$ >> {folder}/nodes\n"
        + f"trap 'sleep 1; echo drained >> {folder}/calls; exit 1' TERM\nwhile :; do sleep 0.1; done",
        # Slurm's: the signal goes to the job's steps, and not to the script that is its batch step.
        "scancel": log + runs + f'[ "$1" = --signal=TERM ] && [ "$2" = 77 ] && kill -TERM $(cat {folder}/nodes)',
        # -c asks for versions, and - drains by Ray's API.
        "python": log + '[ "$1" != -c ] || { echo 2.60.0; exit; }\n[ "$1" != - ] || exit 0\n' + driver,
    }
    for name, script in scripts.items():
        (binaries / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
        (binaries / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_CPUS_PER_TASK": "4", "SLURM_GPUS_ON_NODE": "1"}
    sweep = {"SWEEP": "sweep.yaml", "STORAGE": str(folder / "shared")}
    return {"PATH": f"{binaries}:{os.environ['PATH']}", "HOME": str(folder), **slurm, **sweep}


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []


def run(folder: Path, driver: str, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with a Slurm that may be broken by now."""
    env = (scheduler(folder, driver) if driver else {}) | environment
    return subprocess.run(["bash", SLURM, *flags], env=env, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("change", "broken", "status", "message"),
    [
        ({"STORAGE": "s3://bucket/runs"}, {}, 2, "STORAGE=s3://bucket/runs is no folder"),
        ({"SWEEP": ""}, {}, 2, "SWEEP is missing"),
        ({"STORAGE": "/dev/null/runs"}, {}, 2, "STORAGE=/dev/null/runs cannot be made"),
        ({}, {"ray": "exit 3"}, 1, "no Ray cluster answers at node1:"),
        ({}, {"srun": 'rm -r shared/.ray-*\nexec "${@: -9}"'}, 2, "node2: does not see STORAGE="),
        ({}, {"srun": 'exec "${@: -9:6}" /no/ray "${@: -2}"'}, 2, "node2: has no /no/ray"),
        ({}, {"srun": 'exec "${@: -9:8}" 2.59.0'}, 2, "node2: has Ray 2.60.0, and the first machine 2.59.0"),
        ({}, {"python": "echo no module >&2; exit 1"}, 2, "craft-sweeps is not installed"),
    ],
    ids=["uri", "no sweep", "no folder", "ray", "unseen", "no ray", "other ray", "not installed"],
)
def test_the_slurm_job_says_what_is_wrong(
    tmp_path: Path, change: dict[str, str], broken: dict[str, str], status: int, message: str
) -> None:
    env = scheduler(tmp_path, "sleep 1") | {"SLURMD_NODENAME": "node2"}
    for name, script in broken.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
    done = run(tmp_path, "", **env | change)
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr
    assert not [call for call in calls(tmp_path) if call.startswith("python -m")], "nothing was started"
    assert not (tmp_path / "s3:").exists()
    assert not list(tmp_path.glob("shared/.ray*"))


def test_the_slurm_job_ends_as_the_sweep_does(tmp_path: Path) -> None:
    flags = ["--name", "a run", "--quiet"]
    done = run(tmp_path, "echo continue: $CRAFT_CONTINUE; sleep 2; exit 2", *flags, ARGUMENTS=f" {' '.join(flags)}")
    assert done.returncode == 2, done.stderr
    assert not done.stderr, "the script itself has nothing to say"
    seen = calls(tmp_path)
    (head,) = [call for call in seen if call.startswith("ray start --head")]
    workers = [call for call in seen if call.startswith("ray start --block")]
    assert len(workers) == 2, "a node for trials on each machine, the head's too"
    (address,) = {re.search(r"--address=(\S+)", worker)[1] for worker in workers}  # type: ignore[index]
    host, port = address.split(":")
    assert host == "node1"
    assert int(port) < int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert f"--port={port}" in head
    assert "--num-cpus=0" in head, "the head has no trial, so that it outlives the draining of those that have"
    # Of other jobs on the same machines.
    assert "--temp-dir=/tmp/ray-77" in head
    assert not Path("/tmp/ray-77").exists()
    assert all("--min-worker-port=0 --max-worker-port=0" in node for node in (head, *workers))
    # Ray would take the machine's memory for the job's; head and driver need some of the first machine's.
    memory = sorted(int(re.search(r"--memory=(\d+)", worker)[1]) >> 20 for worker in workers)  # type: ignore[index]
    assert 4096 < memory[0] < memory[1] < 8192
    steps = [call for call in seen if call.startswith("srun") and "--nodelist" in call]
    assert all("--cpus-per-task=4" in step for step in steps)
    assert {re.search(r"--nodelist=(\S+)", step)[1] for step in steps} == {"node1", "node2"}  # type: ignore[index]
    (drive,) = [call for call in seen if call.startswith("python -m orchestrator run sweep.yaml --resume")]
    assert f"--address {address} --storage {tmp_path}/shared" in drive
    assert drive.endswith(" --quiet"), "flags after the script are the run's"
    (command,) = [line for line in done.stdout.splitlines() if line.startswith("continue: sbatch ")]
    export = f"--export=ALL,SWEEP=sweep.yaml,STORAGE={tmp_path}/shared"
    assert shlex.split(command)[-5:] == [export, "/home/me/slurm.sbatch", *flags]
    assert not [call for call in seen if "requeue" in call]
    assert not list((tmp_path / "shared").glob(".ray-*"))


STOPS = "trap 'sleep 1; echo stopped >> calls; exit 143' TERM\necho ready >> calls\nwhile :; do sleep 0.1; done"


def end(folder: Path, change: dict[str, str], ending: Callable[[subprocess.Popen[str]], object], driver: str = STOPS) -> int:
    """Runs the script until its sweep trains, lets it end by `ending`, and returns its exit status."""
    env = scheduler(folder, driver) | change
    process = subprocess.Popen(["bash", SLURM], env=env, cwd=folder, stdout=subprocess.PIPE, text=True)
    nodes = folder / "nodes"
    # The sweep trains and both machines have their node.
    wait_for(lambda: "ready" in calls(folder) and nodes.exists() and len(nodes.read_text().split()) == 2, seconds=60)
    ending(process)
    process.communicate(timeout=60)
    return process.returncode


SLOW = pytest.mark.slow
ARRAY = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize(
    ("number", "state", "preempted", "change", "requeued"),
    [
        pytest.param(signal.SIGUSR1, "RUNNING", False, {}, "77", id="time limit"),
        pytest.param(signal.SIGUSR1, "RUNNING", False, ARRAY, "77_3", marks=SLOW, id="time limit of an array's task"),
        pytest.param(signal.SIGTERM, "RUNNING", False, {}, "77", marks=SLOW, id="scancel --batch --signal=TERM"),
        pytest.param(signal.SIGTERM, "COMPLETING", False, {}, None, id="scancel, requeue by an operator"),
        pytest.param(signal.SIGUSR1, "COMPLETING", False, {}, None, marks=SLOW, id="scancel while it drains"),
        pytest.param(signal.SIGTERM, "", False, {}, None, marks=SLOW, id="Slurm does not answer"),
        pytest.param(None, "RUNNING", True, {}, "77", id="preemption"),
        pytest.param(None, "RUNNING", False, {}, None, marks=SLOW, id="scancel --signal=TERM"),
        pytest.param(None, "COMPLETING", False, {}, None, marks=SLOW, id="scancel, seen by its steps"),
    ],
)
def test_the_slurm_job_is_queued_again_where_slurm_lets_it_run_on(
    tmp_path: Path, number: int | None, state: str, preempted: bool, change: dict[str, str], requeued: str | None
) -> None:
    def ending(process: subprocess.Popen[str]) -> None:
        (tmp_path / "state").write_text(f"{state}\n" if state else "")
        if preempted:
            (tmp_path / "preempted").touch()
        if number is not None:
            process.send_signal(number)
        if number is None or state != "RUNNING":  # the steps alone, as a preemption and `scancel --signal=TERM` do
            for node in (tmp_path / "nodes").read_text().split():
                os.kill(int(node), signal.SIGTERM)

    status = end(tmp_path, change, ending)
    seen = calls(tmp_path)
    if requeued:
        assert status == 0
        assert seen.index("stopped") < seen.index(f"scontrol requeue {requeued}")
    else:
        assert status == 143
        assert not [call for call in seen if "requeue" in call]
    assert seen.count("drained") == 2, "each node has ended in order"
    if number is not None and state == "RUNNING":
        drained = next(at for at, call in enumerate(seen) if call.startswith("python - node1:"))
        assert drained < seen.index("stopped"), "trials leave first"
    assert not list((tmp_path / "shared").glob(".ray-*"))


def test_a_sweep_that_ends_while_it_is_told_to_stop_is_not_queued_again(tmp_path: Path) -> None:
    driver = "trap 'exit 0' TERM\necho ready >> calls\nwhile :; do sleep 0.1; done"
    assert end(tmp_path, {}, lambda process: process.send_signal(signal.SIGUSR1), driver) == 0
    assert not [call for call in calls(tmp_path) if "requeue" in call]


def test_a_warning_that_comes_before_the_sweep_begins_does_not_queue_the_job_for_ever(tmp_path: Path) -> None:
    env = scheduler(tmp_path, "sleep 9")
    ray = tmp_path / "bin" / "ray"
    ray.write_text(
        ray.read_text().replace('[ "$1" = status ] && exit\n', '[ "$1" = status ] && { kill -USR1 $PPID; exit 1; }\n')
    )
    done = run(tmp_path, "", **env)
    assert (done.returncode, "give a longer --time" in done.stderr) == (2, True), done.stderr
    assert not [call for call in calls(tmp_path) if "requeue" in call]


@pytest.mark.parametrize("plugin", ["linuxproc", "pgid"])
def test_a_slurm_that_signals_all_processes_is_named(tmp_path: Path, plugin: str) -> None:
    (tmp_path / "config").write_text(f"ProctrackType           = proctrack/{plugin}\n")
    assert "trials continue from their last evaluation then" in run(tmp_path, "sleep 2").stdout
