"""The files of `orchestrator/deploy`: their structure, and the Slurm script against a scheduler that is not there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import doctor
from orchestrator.run import parser

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "orchestrator" / "deploy"
SLURM = FOLDER / "slurm.sbatch"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def run_arguments(command: str) -> list[str]:
    """What a command line gives to `python -m orchestrator.run`; parsing them refuses an unknown flag."""
    given = shlex.split(command.split("orchestrator.run", 1)[1])
    parser().parse_args(given)
    return given


def pods(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    cluster = job["spec"]["rayClusterSpec"]
    groups = {"head": cluster["headGroupSpec"], **{group["groupName"]: group for group in cluster["workerGroupSpecs"]}}
    return {name: group["template"]["spec"] for name, group in groups.items()}


def test_the_rayjob_resumes_on_storage_that_every_pod_mounts() -> None:
    claim, job = documents("kuberay.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    arguments = run_arguments(job["spec"]["entrypoint"])
    assert "--resume" in arguments
    storage = arguments[arguments.index("--storage") + 1]
    for name, pod in pods(job).items():
        (container,) = pod["containers"]
        mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        (source,) = [mounted[path] for path in mounted if storage.startswith(f"{path}/")]
        assert volumes[source]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"], name
        assert pod["securityContext"]["runAsNonRoot"] is True


def test_the_rayjob_keeps_to_what_its_operator_and_kubernetes_know() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    claim, job = documents("kuberay.yaml")
    known = kubernetes.latest_version()
    kubernetes.validate(claim, known, strict=True)
    spec = job["spec"]
    cluster = spec["rayClusterSpec"]
    # Pods submit the job by the head's dashboard, so it may not listen on loopback alone; the token is its lock.
    assert cluster["authOptions"] == {"mode": "token"}
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert "dashboard-host" not in group["rayStartParams"]
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    groups = cluster["headGroupSpec"], *cluster["workerGroupSpecs"]
    for template in (spec["submitterPodTemplate"], *(group["template"] for group in groups)):
        kubernetes.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {}, **template}, known, strict=True)
    assert set(yaml.safe_load(spec["runtimeEnvYAML"])) <= {"env_vars", "working_dir", "pip", "py_modules"}


def test_the_tracking_server_on_kubernetes_keeps_to_its_schema() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    for one in documents("mlflow.kubernetes.yaml"):
        kubernetes.validate(one, kubernetes.latest_version(), strict=True)


def test_credentials_come_from_a_secret_only() -> None:
    _, job = documents("kuberay.yaml")
    for pod in pods(job).values():
        environment = {one["name"]: one for one in pod["containers"][0]["env"]}
        for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "HF_TOKEN"):
            assert "secretKeyRef" in environment[name]["valueFrom"], name


def drain_arguments(given: Sequence[str]) -> dict[str, Any]:
    """What Ray's own parser makes of `ray drain-node ...`."""
    from ray.scripts.scripts import cli

    assert list(given[:2]) == ["ray", "drain-node"]
    command = cli.commands["drain-node"]
    return command.make_context("drain-node", list(given[2:])).params


def test_a_pod_that_is_to_end_is_drained_within_its_grace() -> None:
    _, job = documents("kuberay.yaml")
    pod = pods(job)["gpu-spot"]
    (container,) = pod["containers"]
    drained = drain_arguments(container["lifecycle"]["preStop"]["exec"]["command"])
    assert drained["reason"] == "DRAIN_NODE_REASON_PREEMPTION"
    assert drained["deadline_remaining_seconds"] < pod["terminationGracePeriodSeconds"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert float(environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]) < pod["terminationGracePeriodSeconds"]


def test_a_spot_machines_notice_drains_it(tmp_path: Path) -> None:
    """`curl` is a stand-in: there is a token, and the notice comes at the third question."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    scripts = {
        "curl": 'echo "curl $*" >> calls\n[[ $* == *api/token* ]] && { echo secret; exit 0; }\n'
        "[[ $* == *secret*spot/instance-action* ]] || exit 9\n[ $(grep -c instance-action calls) -ge 3 ] || exit 22",
        "sleep": 'echo "sleep $*" >> calls',
        "ray": 'printf "%s\\n" ray "$@" > drained',
    }
    for name, script in scripts.items():
        (binaries / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
        (binaries / name).chmod(0o755)
    env = {"PATH": f"{binaries}:{os.environ['PATH']}"}
    command = ["bash", str(FOLDER / "spot-watch.sh"), "10.0.0.1:6379"]
    subprocess.run(command, env=env, cwd=tmp_path, timeout=60, check=True)
    drained = drain_arguments((tmp_path / "drained").read_text().splitlines())
    assert drained["address"] == "10.0.0.1:6379"
    assert drained["reason"] == "DRAIN_NODE_REASON_PREEMPTION"
    assert drained["deadline_remaining_seconds"] < 120
    assert (tmp_path / "calls").read_text().count("sleep") == 2


def test_the_ray_cluster_file_keeps_to_rays_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    import ray

    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    (cluster,) = documents("ray-cluster.yaml")
    jsonschema.validate(cluster, schema)
    assert cluster["available_node_types"][cluster["head_node_type"]]["resources"] == {"CPU": 0}
    assert "--dashboard-host=127.0.0.1" in " ".join(cluster["head_start_ray_commands"])
    for kind in ("head", "worker"):
        assert "RAY_AUTH_MODE=token" in " ".join(cluster[f"{kind}_start_ray_commands"])


def test_commands_in_the_heads_of_files_are_commands_that_exist() -> None:
    text = (FOLDER / "ray-cluster.yaml").read_text()
    (command,) = re.findall(r"python -m orchestrator\.run [^']+", text)
    run_arguments(command)
    shown = SLURM.read_text()
    (shared,) = re.findall(r'"\$\{command\[@\]\}" (.*?) "\$@" &\n', shown)
    (run,) = re.findall(r"command=\((orchestrator\.run .*?)\)\n", shown)
    run_arguments(f"{run} {shared}")
    (look,) = re.findall(r"orchestrator\.doctor (.*?)`", (FOLDER / "kuberay.yaml").read_text().replace("\n# ", " "))
    flags = set(re.findall(r"--[a-z-]+", f"{shared} {look}"))
    assert flags <= set(re.findall(r'"(--[a-z-]+)"', Path(doctor.__file__).read_text()))


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
    done = subprocess.run([str(SHELLCHECK), SLURM, FOLDER / "spot-watch.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


STATE = "RUNNING"


def scheduler(folder: Path, driver: str) -> dict[str, str]:
    """An environment with a Slurm that is a few shell scripts, and `driver` as what the sweep's process does.

    `state` in the folder is the job's state by Slurm, and `preempted` says that Slurm has preempted it. As Slurm itself, it
    refuses to requeue a job that does not run, and to signal its steps.
    """
    binaries = folder / "bin"
    binaries.mkdir()
    (folder / "state").write_text(f"{STATE}\n")
    log = f'echo "$(basename "$0") $*" >> {folder}/calls\n'
    runs = f"grep -q RUNNING {folder}/state || {{ echo 'slurm_error: Job is not running' >&2; exit 1; }}\n"
    scripts = {
        "srun": log + 'while [[ $1 == --* ]]; do shift; done\nexec "$@"',
        "squeue": log + f"cat {folder}/state",
        "scontrol": log
        + f"""case $1$2 in
            showhostnames) printf "node1\\nnode2\\n" ;;
            showconfig) cat {folder}/config 2> /dev/null || echo "ProctrackType = proctrack/cgroup" ;;
            showjob) [ ! -e {folder}/preempted ] || echo "PreemptTime=2026-11-25T09:47:03"
                echo "   Nodes=node[1-2] CPU_IDs=0-3 Mem=8192 GRES="
                echo "   Command=/home/me/slurm.sbatch" ;;
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


def wait_until_it_runs(folder: Path) -> None:
    """Until the sweep trains and both machines have their node."""
    nodes, until = folder / "nodes", time.monotonic() + 60
    while not ("ready" in calls(folder) and nodes.exists() and len(nodes.read_text().split()) == 2):
        assert time.monotonic() < until
        time.sleep(0.1)


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
    done = subprocess.run(
        ["bash", SLURM], env=env | change, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr
    assert not [call for call in calls(tmp_path) if call.startswith("python -m")], "nothing was started"
    assert not (tmp_path / "s3:").exists()
    assert not list(tmp_path.glob("shared/.ray*"))


@pytest.mark.parametrize("status", [0, 2])
def test_the_slurm_job_ends_as_the_sweep_does(tmp_path: Path, status: int) -> None:
    env = scheduler(tmp_path, f"echo continue: $CRAFT_CONTINUE; sleep 2; exit {status}")
    done = subprocess.run(
        ["bash", SLURM, "--quiet"], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status, done.stderr
    assert not done.stderr, "a good end is quiet"
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
    (drive,) = [call for call in seen if call.startswith("python -m orchestrator.run sweep.yaml --resume")]
    assert f"--address {address} --storage {tmp_path}/shared" in drive
    assert drive.endswith(" --quiet"), "flags after the script are the run's"
    (command,) = [line for line in done.stdout.splitlines() if line.startswith("continue: sbatch ")]
    assert f"--export=ALL,SWEEP=sweep.yaml,STORAGE={tmp_path}/shared /home/me/slurm.sbatch" in command
    assert not [call for call in seen if "requeue" in call]
    assert not list((tmp_path / "shared").glob(".ray-*"))


STOPS = "trap 'sleep 1; echo stopped >> calls; exit 143' TERM\necho ready >> calls\nwhile :; do sleep 0.1; done"


def end(folder: Path, change: dict[str, str], ending: Callable[[subprocess.Popen[str]], object], driver: str = STOPS) -> int:
    """Runs the script until its sweep trains, lets it end by `ending`, and returns its exit status."""
    env = scheduler(folder, driver) | change
    process = subprocess.Popen(["bash", SLURM], env=env, cwd=folder, stdout=subprocess.PIPE, text=True)
    wait_until_it_runs(folder)
    ending(process)
    process.communicate(timeout=60)
    return process.returncode


def signal_steps(folder: Path) -> None:
    """Signals the steps alone, as a preemption and `scancel --signal=TERM` do."""
    for node in (folder / "nodes").read_text().split():
        os.kill(int(node), signal.SIGTERM)


ARRAY = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize(
    ("number", "state", "preempted", "change", "requeued"),
    [
        (signal.SIGUSR1, "RUNNING", False, {}, "77"),
        (signal.SIGUSR1, "RUNNING", False, ARRAY, "77_3"),
        (signal.SIGTERM, "RUNNING", False, {}, "77"),
        (signal.SIGTERM, "COMPLETING", False, {}, None),
        (signal.SIGUSR1, "COMPLETING", False, {}, None),
        (signal.SIGTERM, "", False, {}, None),
        (None, "RUNNING", True, {}, "77"),
        (None, "RUNNING", False, {}, None),
        (None, "COMPLETING", False, {}, None),
    ],
    ids=[
        "time limit", "time limit of an array's task", "scancel --batch --signal=TERM", "scancel, requeue by an operator",
        "scancel while it drains", "Slurm does not answer", "preemption", "scancel --signal=TERM", "scancel, seen by its steps",
    ],
)  # fmt: skip
def test_the_slurm_job_is_queued_again_where_slurm_lets_it_run_on(
    tmp_path: Path, number: int | None, state: str, preempted: bool, change: dict[str, str], requeued: str | None
) -> None:
    def ending(process: subprocess.Popen[str]) -> None:
        (tmp_path / "state").write_text(f"{state}\n" if state else "")
        if preempted:
            (tmp_path / "preempted").touch()
        if number is not None:
            process.send_signal(number)
        if number is None or state != "RUNNING":
            signal_steps(tmp_path)

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
    done = subprocess.run(["bash", SLURM], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "give a longer --time" in done.stderr) == (2, True), done.stderr
    assert not [call for call in calls(tmp_path) if "requeue" in call]


@pytest.mark.parametrize("plugin", ["linuxproc", "pgid"])
def test_a_slurm_that_signals_all_processes_is_named(tmp_path: Path, plugin: str) -> None:
    env = scheduler(tmp_path, "sleep 2")
    (tmp_path / "config").write_text(f"ProctrackType           = proctrack/{plugin}\n")
    done = subprocess.run(["bash", SLURM], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "trials continue from their last evaluation then" in done.stdout
