"""One run trained by several processes at once, each on its share of every micro-batch; equal to the run of one process.

    every process      the same model from the same seed, the same batches in the same order
    a micro-batch      rows rank::size  ->  forward, backward
    an optimizer step  gradients summed over the team, once  ->  the same step everywhere

An adapter is so small that its gradients travel as one message a step, without a wrapper around the model. Losses are divided
by the examples of the whole step (`craft.trainer.hf_trainer`), so members exchange only sums, and in a last batch
smaller than the team some members are idle. Random numbers inside a step (dropout) are each member's own and depend on seed,
step and rank alone, so that a resumed run draws the same ones. Rank 0 alone scores, saves and reports; where the
base is split over the team (`craft.trainer.sharding`), the others score too.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

_PATIENCE = timedelta(days=2)
"""How long members wait while rank 0 scores. The process that started the team ends it if it hangs."""
_JOINING = timedelta(minutes=5)
_MESSAGE_BYTES = 32 * 2**20
_DRIFT = 1e-3


class MemberLost(ConnectionError):
    """The connection to another process of the team is lost; the run may be tried again from its last checkpoint."""


class Drifted(RuntimeError):
    """Members of a team no longer hold the same weights."""


@dataclass(frozen=True)
class Team:
    """This process's place among those that train one run: `rank` of `size`.

    With `sharded` each holds a part of the base model, so that all of them have to call it alike.
    """

    rank: int
    size: int
    sharded: bool = False

    @property
    def scores(self) -> bool:
        """Whether this member scores what the team has trained; rank 0 alone reports and keeps it."""
        return self.rank == 0 or self.sharded

    def share(self, inputs: dict[str, Any]) -> dict[str, Any] | None:
        """This member's rows of a collated micro-batch; None where there are none left for it."""
        shared = {name: value[self.rank :: self.size] for name, value in inputs.items()}
        return shared if len(next(iter(shared.values()))) else None

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of every member's `value`, in place."""
        with _losses_named():
            dist.all_reduce(value)
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
        extremes = torch.cat([norms, -norms])
        with _losses_named():
            dist.all_reduce(extremes, dist.ReduceOp.MAX)
        largest, smallest = extremes[: len(norms)], -extremes[len(norms) :]
        if not torch.allclose(largest, smallest, rtol=_DRIFT, atol=_DRIFT):
            raise Drifted(f"the {self.size} workers of this run no longer hold the same weights: are their libraries the same?")
        with _losses_named():
            for weight in trained:
                dist.broadcast(weight, src=0)

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
    """The store through which the members of a team find each other; rank 0 keeps it and listens."""

    host: str
    port: int
    store: dist.Store

    @classmethod
    def opened(cls, host: str) -> Meeting:
        """A new meeting that listens on `host`, an address of this machine, and on no other address."""
        listening = socket.create_server((host, 0))
        port = listening.getsockname()[1]
        store = dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, timeout=_JOINING, master_listen_fd=listening.detach()
        )
        return cls(host, port, store)

    @classmethod
    def at(cls, host: str, port: int) -> Meeting:
        """The meeting that another process opened."""
        return cls(host, port, dist.TCPStore(host, port, is_master=False, timeout=_JOINING))


@contextmanager
def gathered(meeting: Meeting, rank: int, size: int, *, sharded: bool = False) -> Iterator[Team]:
    """Waits for all members and gives the team; the end of the block ends the team for all.

    Raises:
        MemberLost: a member did not come in time.
    """
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    with _losses_named(), _network_of(meeting):
        dist.init_process_group(backend, store=meeting.store, rank=rank, world_size=size, timeout=_PATIENCE)
    try:
        yield Team(rank, size, sharded)
    finally:
        # Closes the connections: members that wait for this one hear at once that it is gone.
        dist.destroy_process_group()


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
