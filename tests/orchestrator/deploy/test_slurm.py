"""The Slurm script on a real Slurm: its daemons on this machine, and two machines that are namespaces with their own /tmp.

Needs root, Linux namespaces, slurm-wlm and munge. Each sweep starts three Ray nodes, so a test takes a minute or two.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from orchestrator.record.events import Event, Interrupted, Reported
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_events
from tests.orchestrator.stand_in import wait_for

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "orchestrator" / "deploy" / "slurm.sbatch"
DAEMONS = ("slurmctld", "slurmd", "munged", "unshare")
PATH = f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin"

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(shutil.which(name, path=PATH) for name in DAEMONS), reason="needs root, slurm-wlm, munge"
    ),
]

FREEZER = Path("/sys/fs/cgroup/freezer")
PROCTRACK = "cgroup" if (FREEZER / "cgroup.procs").exists() else "linuxproc"
CONF = """
ClusterName=test
SlurmctldHost=control(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
MpiDefault=none
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
MinJobAge=86400
SlurmdParameters=config_overrides
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
NodeName=node1 NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=8000
NodeName=node2 NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=8000
PartitionName=day Nodes=ALL Default=YES PriorityTier=1 GraceTime=900 DefaultTime=60
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""
MACHINE = """
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
if [ "$1" != control ]; then
    mkdir -p "$2/$1"
    for seen in "${@:4}"; do
        case $seen in /tmp/*) mkdir -p "$2/$1/${seen#/tmp/}"; mount --bind "$seen" "$2/$1/${seen#/tmp/}" ;; esac
    done
    mount --rbind "$2/$1" /tmp
fi
eval "$3" &
while :; do sleep 1000; done  # the first process of its namespace reaps orphans
"""
SWEEP = """
name: {name}
model: {folder}/model
tasks: [toy/sentiment]
seeds: [0]
training: {{max_steps: {steps}, batch_size: 8, train_examples: 64, eval_examples: 24, max_length: 32}}
space: [{{method: craft, ranks: {{values: [[all, 8, 8], [all, 4, 4]]}}}}]
resources: {{cpu: 1}}
"""


class Slurm:
    """A controller and two machines; all their files are in `folder`, which both machines see."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.environment = os.environ | {"PATH": PATH, "SLURM_CONF": f"{folder}/slurm.conf"}
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        ports = [listener.getsockname()[1] for listener in sockets]
        for listener in sockets:
            listener.close()
        (folder / "slurm.conf").write_text(CONF.format(folder=folder, ports=ports, proctrack=PROCTRACK))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\n")
        (folder / "hosts").write_text("127.0.0.1 localhost control node1 node2\n")
        for name in ("state", "spool-node1", "spool-node2"):
            (folder / name).mkdir()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)

    def start(self) -> None:
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        flags = [f"--{flag}={self.folder}/munge.{name}" for flag, name in files.items()]
        subprocess.run(["munged", "--force", *flags], env=self.environment, check=True, stderr=subprocess.DEVNULL)
        for name in ("control", "node1", "node2"):
            daemon = f"slurmctld -D -c -f {self.folder}/slurm.conf"
            if name != "control":
                daemon = f"slurmd -D -N {name} -f {self.folder}/slurm.conf"
            command = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c"]
            seen = map(str, (self.folder, ROOT, sys.prefix))
            with (self.folder / f"{name}.out").open("wb") as out:
                arguments = [*command, MACHINE, "machine", name, str(self.folder), daemon, *seen]
                environment = {"PATH": PATH}
                self.processes.append(
                    subprocess.Popen(arguments, env=environment, stdout=out, stderr=out, start_new_session=True)
                )
        wait_for(lambda: self.ask("sinfo -h -p day -t idle -o %D") == "2")

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        if (pid := self.folder / "munge.pid").exists():
            os.kill(int(pid.read_text()), 15)
        for cgroup in FREEZER.glob("slurm_node[12]"):
            for path in sorted([cgroup, *filter(Path.is_dir, cgroup.rglob("*"))], reverse=True):
                path.rmdir()

    def ask(self, command: str) -> str:
        done = subprocess.run(command.split(), env=self.environment, capture_output=True, text=True, check=False, timeout=60)
        return done.stdout.strip()

    def submit(self, name: str, steps: int = 20, storage: Path | None = None) -> str:
        file = self.folder / f"{name}.yaml"
        file.write_text(SWEEP.format(name=name, folder=self.folder, steps=steps))
        (self.folder / "shared").mkdir(exist_ok=True)
        here = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "CRAFT_CACHE_DIR": f"{self.folder}/cache"}
        sweep = {"SWEEP": str(file), "STORAGE": str(storage or self.folder / "shared" / name)}
        quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PIN_MEMORY": "0"}
        command = ["sbatch", "--parsable", "--cpus-per-task=1", "--mem=3G", f"--output={self.log(name)}", str(SCRIPT)]
        environment = self.environment | here | sweep | quiet
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def field(self, job: str, name: str) -> str:
        match = re.search(rf"\b{name}=(\S+)", self.ask(f"scontrol show job -o {job}"))
        return match[1] if match else ""

    def wait(self, job: str, *states: str) -> None:
        wait_for(lambda: self.field(job, "JobState") in states, seconds=480)

    def leftovers(self) -> list[Path]:
        return [*self.folder.glob("node[12]/ray-*"), *self.folder.glob("shared/*/.ray-*")]

    def reports(self, name: str) -> list[Reported | Interrupted]:
        log = SweepFolder(self.folder / "shared" / name / name).record
        return [event for event, _ in read_events(log) if isinstance(event, Reported | Interrupted)] if log.exists() else []

    def wait_for_steps(self, name: str) -> None:
        wait_for(lambda: len({key for key, step in reached(self.reports(name)).items() if step > 8}) == 2, seconds=480)


def reached(events: Sequence[Event]) -> dict[str, float]:
    """The step of each trial's last report."""
    return {event.key: event.rows[-1]["step"] for event in events if isinstance(event, Reported)}


@pytest.fixture(scope="module")
def slurm(tiny_bert: str) -> Iterator[Slurm]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    cluster = Slurm(folder)
    shutil.copytree(tiny_bert, folder / "model")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_machine_that_does_not_see_the_storage_is_named(slurm: Slurm) -> None:
    job = slurm.submit("unseen", storage=Path("/tmp/of-each-machine"))
    slurm.wait(job, "FAILED", "COMPLETED")
    assert slurm.field(job, "ExitCode") == "2:0"
    assert "node2: does not see STORAGE=/tmp/of-each-machine" in slurm.log("unseen").read_text()


def test_two_sweeps_at_once_end_with_their_fronts_and_leave_nothing(slurm: Slurm) -> None:
    jobs = {name: slurm.submit(name) for name in ("first", "second")}
    for name, job in jobs.items():
        slurm.wait(job, "FAILED", "COMPLETED")
        log = slurm.log(name).read_text()
        assert slurm.field(job, "ExitCode") == "0:0", log
        assert "configurations on the front" in log
        assert not re.search("CANCELLED|Killed|Terminated|error", log), log
    assert not slurm.leftovers()


def test_a_cancelled_job_is_not_queued_again(slurm: Slurm) -> None:
    job = slurm.submit("cancelled", 20_000)
    slurm.wait_for_steps("cancelled")
    slurm.ask(f"scancel {job}")
    wait_for(lambda: not slurm.ask(f"squeue -h -j {job}"))
    assert (slurm.field(job, "JobState"), slurm.field(job, "Restarts")) == ("CANCELLED", "0")
    assert "continue with: sbatch " in slurm.log("cancelled").read_text()
    assert not slurm.leftovers()


def test_before_the_time_limit_trials_checkpoint_and_the_job_continues_them(slurm: Slurm) -> None:
    job = slurm.submit("limited", 20_000)
    slurm.wait_for_steps("limited")
    hours, minutes, _ = map(int, slurm.field(job, "RunTime").split(":"))
    slurm.ask(f"scontrol update JobId={job} TimeLimit={60 * hours + minutes + 3}")  # the warning comes 300 s before it
    slurm.wait(job, "PENDING", "COMPLETED", "FAILED", "TIMEOUT")
    assert slurm.field(job, "Restarts") == "1", slurm.log("limited").read_text()
    slurm.ask(f"scontrol update JobId={job} TimeLimit=60")
    before = slurm.reports("limited")
    assert isinstance(before[-1], Interrupted)
    wait_for(lambda: len(slurm.reports("limited")) > len(before), seconds=480)
    ((key, step),) = reached(slurm.reports("limited")[len(before) : len(before) + 1]).items()
    slurm.ask(f"scancel {job}")
    assert reached(before)[key] < step <= reached(before)[key] + 16, "from the checkpoint, not from the start"
    slurm.wait(job, "CANCELLED")


def test_a_preempted_job_makes_room_before_its_grace_ends_and_is_queued_again(slurm: Slurm) -> None:
    job = slurm.submit("preempted", 20_000)
    slurm.wait_for_steps("preempted")
    urgent = slurm.ask("sbatch --parsable --partition=urgent --nodes=2 --exclusive --output=/dev/null --wrap true")
    slurm.wait(urgent, "COMPLETED")  # the grace is longer than the test waits
    assert slurm.field(job, "Restarts") == "1"
    assert "preempted: the sweep stops here" in slurm.log("preempted").read_text()
    slurm.ask(f"scancel {job}")
