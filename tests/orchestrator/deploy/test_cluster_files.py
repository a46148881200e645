"""The files of `orchestrator/deploy`: their structure, and the Slurm script against a scheduler that is not there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.commands.app import COMMANDS, build

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "orchestrator" / "deploy"
SLURM = FOLDER / "slurm.sbatch"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def parse(command: str, arguments: Sequence[str]) -> None:
    """Refuses what is no option of the command."""
    build(COMMANDS).commands[command].make_context(command, [*arguments])


def pods(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    cluster = job["spec"]["rayClusterSpec"]
    groups = {"head": cluster["headGroupSpec"], **{group["groupName"]: group for group in cluster["workerGroupSpecs"]}}
    return {name: group["template"]["spec"] for name, group in groups.items()}


def test_the_rayjob_resumes_on_storage_that_every_pod_mounts() -> None:
    claim, job = documents("kuberay.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    arguments = shlex.split(job["spec"]["entrypoint"].split("craft-sweeps run", 1)[1])
    parse("run", arguments)
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
        parse(name, shlex.split(f"{options.replace('${#machines[@]}', '2')} {shared}"))
    (look,) = re.findall(r"craft-sweeps check (.*?)`", (FOLDER / "kuberay.yaml").read_text().replace("\n# ", " "))
    parse("check", shlex.split(look))


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
    done = subprocess.run([str(SHELLCHECK), SLURM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
