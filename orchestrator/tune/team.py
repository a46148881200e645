"""Several processes for one trial: its own is rank 0, and an actor in each other bundle of its placement group is a rank more.

    resources: {workers: 3, gpu: 1}
    bundle 0   the trial's worker   train_run(team)   scores, stores, reports; killed and stopped like any trial
    bundle 1   a Member             join_run(team)    on this machine or another
    bundle 2   a Member             join_run(team)

Members stay warm for the next trial of the same worker, and end with it, since it owns them. They get run and checkpoint
from rank 0, so that all of them train the same even if storage is slow to show a file. What goes wrong in a member (memory,
data) is told as if it had gone wrong in rank 0; a member that is lost makes the trial one to be started again
(`craft.trainer.liveness`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from craft.results import Progress, RunFailed, RunResult
from craft.spec import RunSpec
from craft.trainer.memory import out_of_memory
from orchestrator.tools.scratch import scratch_folder
from orchestrator.worker import crash
from orchestrator.worker.gpus import keep_to_share, require_gpu
from orchestrator.worker.guards import free_memory
from orchestrator.worker.host_memory import memory_limit
from orchestrator.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from ray.actor import ActorHandle

LOOPBACK = "127.0.0.1"
READY_SECONDS = 900.0
LAST_WORDS_SECONDS = 10.0

_warm: dict[str, list[ActorHandle]] = {}
"""Members of this process's placement group, which it keeps from trial to trial."""


class Member:
    """A rank beyond the first of whatever trial its owner trains."""

    def __init__(self, gpu: float) -> None:
        """
        Args:
            gpu: its share of a GPU.
        """
        keep_to_share(gpu)
        self._gpu = gpu

    def ready(self, settings: WorkerSettings) -> str:
        """Loads the libraries and prepares the machine, which takes machines unequal times, and gives this machine's address.

        Raises:
            GpuUnusable: it was given a GPU that torch cannot use.
        """
        if self._gpu:
            require_gpu()
        importlib.import_module("craft.trainer.training")
        with settings.surrounded():
            pass
        return ray.util.get_node_ip_address()

    def join(
        self,
        run: dict[str, Any],
        checkpoint: dict[str, bytes] | None,
        meeting: tuple[str, int],
        rank: int,
        size: int,
        sharded: bool,
        gpus: bool,
        settings: WorkerSettings,
    ) -> None:
        """Trains `run` with the others, from a checkpoint given by its files."""
        from craft.trainer.team import Meeting, gathered
        from craft.trainer.training import join_run

        free_memory(settings.threads)
        with scratch_folder("member") as scratch, memory_limit(settings), settings.surrounded():
            resume_from = _written(scratch / "checkpoint", checkpoint) if checkpoint else None
            with gathered(Meeting.at(*meeting), rank, size, sharded=sharded, gpus=gpus) as team:
                join_run(RunSpec.model_validate(run), scratch, team, resume_from=resume_from)


class TeamTraining:
    """`craft.trainer.training.train_run` by all workers of the trial in whose process it is called."""

    def __init__(self, asked: dict[str, float], settings: WorkerSettings, *, sharded: bool = False) -> None:
        """
        Args:
            asked: one worker's resources by Ray's names.
            settings: those of the trial's worker, for its members too.
            sharded: the base model's frozen weights are split over the workers.
        """
        self._asked, self._settings, self._sharded = asked, settings, sharded
        self._gpus = asked.get("GPU", 0) > 0

    def __call__(
        self,
        spec: RunSpec,
        directory: Path,
        *,
        report: Callable[[Progress], None],
        resume_from: Path | None,
        on_step: Callable[[int, int], None],
    ) -> RunResult:
        from craft.trainer.team import Meeting, MemberLost, gathered
        from craft.trainer.training import train_run

        if self._settings.gpu:
            require_gpu()
        group = get_current_placement_group()
        assert group is not None, "a team's trial runs in a placement group"
        size = group.bundle_count
        try:
            members = self._members(group)
            addresses = {
                ray.util.get_node_ip_address(),
                *ray.get([one.ready.remote(self._settings) for one in members], timeout=READY_SECONDS),
            }
            meeting = Meeting.opened(LOOPBACK if len(addresses) == 1 else ray.util.get_node_ip_address())
            files = _files(resume_from) if resume_from else None
            told = (spec.model_dump(mode="json"), files, (meeting.host, meeting.port))
            kind = (self._sharded, self._gpus, self._settings)
            work = [one.join.remote(*told, rank, size, *kind) for rank, one in enumerate(members, 1)]
            try:
                with gathered(
                    meeting, 0, size, sharded=self._sharded, gpus=self._gpus, check=lambda: _none_ended(work)
                ) as team:
                    return train_run(spec, directory, report=report, resume_from=resume_from, on_step=on_step, team=team)
            except MemberLost as error:
                raise _cause(work) or error from error
        except ray.exceptions.RayError as error:
            self._dismiss(group)
            raise MemberLost(f"a worker of this trial did not start: {str(error).strip().splitlines()[-1]}") from error
        except BaseException:
            # They may wait in the middle of a step; the next trial gets new ones.
            self._dismiss(group)
            raise

    def _members(self, group: PlacementGroup) -> list[ActorHandle]:
        name = group.id.hex()
        if name not in _warm:
            _warm.clear()
            own = ("CPU", "GPU", "memory")
            actor: Any = ray.remote(Member)
            _warm[name] = [
                actor.options(
                    num_cpus=self._asked.get("CPU", 0),
                    num_gpus=self._asked.get("GPU", 0),
                    memory=self._asked.get("memory", 0),
                    resources={kind: amount for kind, amount in self._asked.items() if kind not in own},
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle),
                ).remote(self._asked.get("GPU", 0))
                for bundle in range(1, group.bundle_count)
            ]
        return _warm[name]

    def _dismiss(self, group: PlacementGroup) -> None:
        for member in _warm.pop(group.id.hex(), ()):
            ray.kill(member)


def _none_ended(work: list[Any]) -> None:
    """
    Raises:
        MemberLost: a member has ended before all had met.
    """
    from craft.trainer.team import MemberLost

    if ray.wait(work, num_returns=1, timeout=0)[0]:
        raise MemberLost("one of its workers ended before the run began")


def _cause(work: list[Any]) -> BaseException | None:
    """What a member died of, where it is not just the loss of another one."""
    from craft.trainer.team import MemberLost

    done, _ = ray.wait(work, num_returns=len(work), timeout=LAST_WORDS_SECONDS)
    for one in done:
        try:
            ray.get(one)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if out_of_memory(cause) or isinstance(cause, RunFailed):
                return cause
        except ray.exceptions.RayError as error:
            return MemberLost(f"one of its workers was lost: {crash.describe(error)}")
    return None


def _files(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
