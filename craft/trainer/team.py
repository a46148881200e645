"""One run trained by several processes at once, each on its share of every micro-batch; equal to the run of one process.

    every process      the same model from the same seed, the same batches in the same order
    a micro-batch      rows rank::size  ->  forward, backward
    an optimizer step  gradients summed over the team, once  ->  the same step everywhere

An adapter is so small that its gradients travel as one message a step, without a wrapper around the model. Losses are divided
by the examples of the whole step (`craft.trainer.hf_trainer`), so members exchange only sums, and in a last batch
smaller than the team some members are idle. Sums travel through host memory over gloo, on GPUs too, because gloo raises when a
member dies; only a base that is split over GPUs (`craft.trainer.sharding`) travels over NCCL. `craft.trainer.liveness` ends
those who wait where nothing raises. Random numbers inside a step (dropout) are each member's own and depend on seed,
step and rank alone, so that a resumed run draws the same ones. Rank 0 alone keeps and reports. It
also scores alone, except where answers are in words, whose questions the team shares, or where the base is split.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from craft.trainer import liveness

_PATIENCE = timedelta(days=2)
"""How long members wait while rank 0 scores. The process that started the team ends it if it hangs."""
_JOINING = timedelta(minutes=15)
"""How long members wait for each other before they load anything; the process that started the team may end the wait."""
_NCCL_SILENCE = timedelta(minutes=10)
"""NCCL ends a process whose collective takes longer. Members meet over gloo before each stretch of work with the split base."""
_LIVES = "lives"
_MESSAGE_BYTES = 32 * 2**20
_DRIFT = 1e-3


class MemberLost(ConnectionError):
    """The connection to another process of the team is lost; the run may be tried again from its last checkpoint."""


class Drifted(RuntimeError):
    """Members of a team no longer hold the same weights."""


@dataclass(frozen=True)
class Team:
    """This process's place among those that train one run: `rank` of `size`.

    With `sharded` each holds a part of the base model, so that all of them have to call it alike. `nccl` is the group through
    which those parts travel between GPUs.
    """

    rank: int
    size: int
    sharded: bool = False
    nccl: dist.ProcessGroup | None = None
    watch: liveness.Watch | None = None

    def share(self, inputs: dict[str, Any]) -> dict[str, Any] | None:
        """This member's rows of a collated micro-batch; None where there are none left for it."""
        shared = {name: value[self.rank :: self.size] for name, value in inputs.items()}
        return shared if len(next(iter(shared.values()))) else None

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of every member's `value`, in place."""
        if value.device.type == "cpu":
            self._reduced(value)
        else:
            value.copy_(self._reduced(value.cpu()))
        return value

    def mesh(self) -> DeviceMesh:
        """The members as torch's FSDP asks for them."""
        if self.nccl is not None:
            return DeviceMesh.from_group(self.nccl, "cuda")
        assert dist.group.WORLD is not None, "a team is a process group"
        return DeviceMesh.from_group(dist.group.WORLD, "cpu")

    def _reduced(self, value: torch.Tensor, how: Any = dist.ReduceOp.SUM) -> torch.Tensor:
        if self.watch is not None and self.watch.lost:
            raise MemberLost(self.watch.lost)
        with _losses_named():
            dist.all_reduce(value, how)
        return value

    def sum_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Gives every weight the sum of all members' gradients; a weight without a gradient on any member stays without."""
        trained = [weight for weight in weights if weight.requires_grad]
        has = torch.tensor([float(weight.grad is not None) for weight in trained], device=trained[0].device)
        flagged = [weight for weight, count in zip(trained, self.total(has).tolist(), strict=True) if count]
        for weight in flagged:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        for group in _messages([weight.grad for weight in flagged if weight.grad is not None]):
            flat = self.total(torch.cat([gradient.flatten() for gradient in group]))
            for gradient, summed in zip(group, flat.split([gradient.numel() for gradient in group]), strict=True):
                gradient.copy_(summed.view_as(gradient))

    def align(self, weights: Sequence[nn.Parameter]) -> None:
        """Waits for every member, and gives all of them rank 0's weights; on equal machines they have the same already.

        Raises:
            Drifted: a member's weights differed by more than rounding.
        """
        trained = [weight.detach() for weight in weights if weight.requires_grad]
        norms = torch.stack([weight.double().norm() for weight in trained])
        extremes = self._reduced(torch.cat([norms, -norms]).cpu(), dist.ReduceOp.MAX)
        largest, smallest = extremes[: len(norms)], -extremes[len(norms) :]
        if not torch.allclose(largest, smallest, rtol=_DRIFT, atol=_DRIFT):
            raise Drifted(f"the {self.size} workers of this run no longer hold the same weights: are their libraries the same?")
        for weight in trained:
            copy = weight.cpu()
            with _losses_named():
                dist.broadcast(copy, src=0)
            if copy is not weight:
                weight.copy_(copy)

    @contextmanager
    def own_random_numbers(self, *when: int) -> Iterator[None]:
        """Inside the block this member draws random numbers of its own; outside, all members draw the same ones.

        Args:
            when: numbers that name the moment, such as seed and step.
        """
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(hash((*when, self.rank)) % 2**63)
            yield


@dataclass(frozen=True)
class Meeting:
    """The store through which the members of a team find each other; rank 0 keeps it, and listens there and for their lives."""

    host: str
    port: int
    store: dist.Store
    listening: socket.socket | None = field(default=None, repr=False)

    @classmethod
    def opened(cls, host: str) -> Meeting:
        """A new meeting that listens on `host`, an address of this machine, and on no other address."""
        kept, lives = socket.create_server((host, 0)), socket.create_server((host, 0))
        port = kept.getsockname()[1]
        store = dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, timeout=_JOINING, master_listen_fd=kept.detach()
        )
        store.set(_LIVES, str(lives.getsockname()[1]))
        return cls(host, port, store, lives)

    @classmethod
    def at(cls, host: str, port: int) -> Meeting:
        """The meeting that another process opened.

        Raises:
            MemberLost: nobody listens there any more.
        """
        with _losses_named():
            return cls(host, port, dist.TCPStore(host, port, is_master=False, timeout=_JOINING))

    def watch(self, rank: int, size: int, check: Callable[[], None]) -> liveness.Watch:
        """Waits for all members, and from then on for the end of each."""
        seconds = _JOINING.total_seconds()
        try:
            if self.listening is not None:
                with self.listening:
                    return liveness.Watch(liveness.welcome(self.listening, size, seconds, check))
            with _losses_named():
                port = int(self.store.get(_LIVES))
            return liveness.Watch({0: liveness.join(self.host, port, rank, seconds)})
        except liveness.Absent as error:
            raise MemberLost(str(error)) from error


@contextmanager
def gathered(
    meeting: Meeting,
    rank: int,
    size: int,
    *,
    sharded: bool = False,
    gpus: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Team]:
    """Waits for all members and gives the team; the end of the block ends the team for all.

    Args:
        sharded: the base is split over the members.
        gpus: every member has a GPU of its own.
        check: called again and again while rank 0 waits; it raises if a member will not come.

    Raises:
        MemberLost: a member did not come in time, or is lost.
    """
    watch = meeting.watch(rank, size, check)
    in_order = False
    try:
        with ExitStack() as group:
            with _losses_named(), _network_of(meeting):
                dist.init_process_group("gloo", store=meeting.store, rank=rank, world_size=size, timeout=_PATIENCE)
                # Closes the connections: members that wait for this one hear at once that it is gone.
                group.callback(dist.destroy_process_group)
                nccl = dist.new_group(backend="nccl", timeout=_NCCL_SILENCE) if sharded and gpus else None
            if nccl is not None:
                watch.interrupt = nccl.abort
            yield Team(rank, size, sharded, nccl, watch)
            in_order = True
    except Exception as error:
        # What a collective leaves behind when it is cut off is no number to judge a run by.
        if watch.interrupted and watch.lost and not isinstance(error, MemberLost):
            raise MemberLost(watch.lost) from error
        raise
    finally:
        watch.close(in_order=in_order)


@contextmanager
def _network_of(meeting: Meeting) -> Iterator[None]:
    """A team that meets on loopback opens no port elsewhere."""
    if meeting.host != "127.0.0.1" or sys.platform != "linux" or "GLOO_SOCKET_IFNAME" in os.environ:
        yield
        return
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        yield
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]


@contextmanager
def _losses_named() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise MemberLost(f"a worker of this run was lost: {' '.join(str(error).split())[:200]}") from error


def _messages(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Gradients of one kind of number together, in messages of bounded size."""
    for kind in dict.fromkeys(gradient.dtype for gradient in gradients):
        group: list[torch.Tensor] = []
        size = 0
        for gradient in (one for one in gradients if one.dtype == kind):
            if group and size + gradient.nbytes > _MESSAGE_BYTES:
                yield group
                group, size = [], 0
            group.append(gradient)
            size += gradient.nbytes
        yield group
