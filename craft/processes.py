"""The processes that train one trial: `Group`. One process is the trivial case, in which nothing is exchanged.

    way         each process holds                         each process computes
    replicate   the whole model                            its share of a step's examples
    shard       its part of the frozen base, or of all     its share; layers are gathered while they compute (FSDP2)
                that trains; adapters whole
    layers      one process: layers on several GPUs        everything

Every process makes the same calls in the same order, because a call that exchanges something waits for the others. The first
process writes, reports and decides. Tensors on a GPU travel by NCCL, everything else by gloo.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from craft.results import Leave
from craft.settings import Way

T = TypeVar("T")

BUCKET = 2**24
"""The most numbers of gradients that are summed by one message."""
_FAILURE = "failure"


@dataclass(frozen=True)
class Group:
    """The processes of a run, as one of them sees them. `rank` 0 is the first process, which decides."""

    way: Way = "replicate"
    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, rows: Sequence[T]) -> Sequence[T]:
        """Returns this process's part of `rows`; parts differ by at most one row."""
        size = len(rows)
        return rows[size * self.rank // self.count : size * (self.rank + 1) // self.count]

    def sum(self, tensor: Tensor) -> Tensor:
        """Sums `tensor` over the processes, in place."""
        if self.count > 1:
            torch.distributed.all_reduce(tensor)
        return tensor

    def count_all(self, number: Any) -> Any:
        """Sums a number, or a tensor that holds one, over the processes."""
        if self.count == 1:
            return number
        return self.sum(number) if isinstance(number, Tensor) else int(self.sum(torch.tensor(number)))

    def sum_gradients(self, weights: Iterable[Tensor]) -> None:
        """Sums the gradients of whole weights over the processes. FSDP has summed those of weights in parts."""
        if self.count == 1:
            return
        for bucket in _buckets([weight for weight in weights if not is_part(weight)]):
            # A process whose examples did not use a weight has no gradient of it. The last numbers say how many have.
            gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in bucket]
            parts = [*gradients, gradients[0].new_tensor([weight.grad is not None for weight in bucket])]
            sums = self.sum(torch.cat([part.flatten() for part in parts])).split([part.numel() for part in parts])
            for part, total in zip(parts, sums, strict=True):
                part.copy_(total.view_as(part))
            for at, (weight, gradient) in enumerate(zip(bucket, gradients, strict=True)):
                if weight.grad is None and parts[-1][at] > 0:
                    weight.grad = gradient

    def ask_first(self, make: Callable[[], T]) -> T:
        """Returns what `make` returns in the first process, in all of them."""
        if self.count == 1:
            return make()
        answers = [make() if self.is_first else None]
        torch.distributed.broadcast_object_list(answers, src=0)
        return answers[0]  # type: ignore[return-value]

    def gather(self, value: T) -> list[T]:
        """Returns the values of all processes, by rank."""
        values: list[Any] = [value] * self.count
        if self.count > 1:
            torch.distributed.all_gather_object(values, value)
        return values

    def agree_to_leave(self, work: Callable[[], None]) -> None:
        """Does `work`. If it raises `Leave` in one process, all raise it, with the reason of the one with the lowest rank."""
        reason: Leave | None = None
        try:
            work()
        except Leave as error:
            if self.count == 1:
                raise
            reason = error
        if self.count > 1 and self.count_all(int(reason is not None)):
            raise next(filter(None, self.gather(reason)))

    def copy_first(self, weights: Iterable[Tensor]) -> None:
        """Gives all processes the first one's values of `weights`."""
        for weight in weights if self.count > 1 else ():
            sent = weight.detach().contiguous()  # an exchange takes no other tensors
            torch.distributed.broadcast(sent, src=0)
            weight.detach().copy_(sent)

    def collect(self, weight: Tensor) -> Tensor | None:
        """Copies a whole weight to CPU memory. Only the first process gets a weight that is in parts."""
        tensor = gather_parts(weight.detach())
        return None if is_part(weight) and not self.is_first else tensor.to("cpu", copy=True).contiguous()

    def put(self, weight: Tensor, values: Tensor | None) -> None:
        """Copies whole `values` into `weight`. A weight in parts takes those of the first process."""
        with torch.no_grad():
            if not is_part(weight):
                assert values is not None
                weight.copy_(values)
                return
            sent = torch.empty(weight.shape, dtype=weight.dtype, device=weight.to_local().device)  # type: ignore[attr-defined]
            if self.is_first:
                assert values is not None
                sent.copy_(values)
            torch.distributed.broadcast(sent, src=0)
            weight.copy_(part_of(sent, weight))

    def deliver(self, folder: Path | None, scratch: Path, seal: str) -> Path | None:
        """Returns the first process's `folder`, or a copy of it in `scratch` where this process does not see it.

        Args:
            seal: the file in it in which two folders differ.
        """
        if self.count == 1:
            return folder
        place = self.ask_first(lambda: None if folder is None else (str(folder), (folder / seal).read_bytes()))
        if place is None:
            return None
        here = Path(place[0])
        sees = (here / seal).is_file() and (here / seal).read_bytes() == place[1]
        if not all(self.gather(sees)):
            names = self.ask_first(lambda: [str(file.relative_to(here)) for file in here.rglob("*") if file.is_file()])
            if not sees:  # the first process may have its folder at that place
                shutil.rmtree(scratch, ignore_errors=True)
            for name in names:
                data = self.ask_first((here / name).read_bytes)
                if not sees:
                    (scratch / name).parent.mkdir(parents=True, exist_ok=True)
                    (scratch / name).write_bytes(data)
        return here if sees else scratch


_current = Group()


def current() -> Group:
    """Returns the group of this process."""
    return _current


def is_part(weight: Any) -> bool:
    """Returns whether a tensor is in parts, of which each process holds one."""
    return hasattr(weight, "full_tensor")


def gather_parts(weight: Any) -> Tensor:
    """Returns a weight whole, in every process."""
    tensor: Tensor = weight.full_tensor() if is_part(weight) else weight
    return tensor


def part_of(values: Tensor, weight: Any) -> Tensor:
    """Returns the part of `values`, which every process has whole, that belongs to this process's part of `weight`."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(values, weight.device_mesh, weight.placements, src_data_rank=None) if is_part(weight) else values


def _buckets(weights: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yields weights of one format and device in their order, with at most `BUCKET` numbers together if one has not more."""
    bucket: list[Tensor] = []
    for weight in weights:
        mixed = bucket and (bucket[0].dtype, bucket[0].device) != (weight.dtype, weight.device)
        if bucket and (mixed or sum(each.numel() for each in bucket) + weight.numel() > BUCKET):
            yield bucket
            bucket = []
        bucket.append(weight)
    if bucket:
        yield bucket


@dataclass(frozen=True)
class Meeting:
    """Where the processes of one try meet: the address of the first one's store, how they share the work, and how long one
    waits for the others in an exchange (`seconds`)."""

    host: str
    port: int
    count: int
    way: Way
    seconds: float

    def open_store(self) -> Any:
        """Returns the store at which the processes meet, as one that is not the first sees it."""
        return torch.distributed.TCPStore(self.host, self.port, None, False, timedelta(seconds=self.seconds))


@contextmanager
def joined(meeting: Meeting, rank: int, store: Any) -> Iterator[None]:
    """Makes this process one of a meeting inside the block.

    The process that fails first leaves its error at the store. When it ends, the exchanges of the others break, and they raise
    that error as well.
    """
    global _current
    gpu, outer_group = torch.cuda.is_available(), _current
    try:
        if meeting.count > 1:
            wait, backend = timedelta(seconds=meeting.seconds), "cpu:gloo,cuda:nccl" if gpu else "gloo"
            torch.distributed.init_process_group(backend, store=store, timeout=wait, rank=rank, world_size=meeting.count)
        _current = Group(meeting.way, rank, meeting.count)
        yield
    except Exception as error:
        cause = leave_cause(store, rank, error)
        if gpu and torch.distributed.is_initialized():  # what waits on a GPU for the others would wait for ever
            torch.distributed.distributed_c10d._abort_process_group()
        if cause is error:
            raise
        raise cause from error
    finally:
        _current = outer_group
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def leave_cause(store: Any, rank: int, error: Exception) -> Exception:
    """Leaves `error` at the store if it is the first one there, and returns the first one."""
    with suppress(Exception):  # an error that cannot be pickled, or a store that is gone with the first process
        store.set(f"{_FAILURE} {rank}", "")
        store.compare_set(_FAILURE, "", pickle.dumps(error).hex())
        cause = find_cause(store)
        return cause if cause and (type(cause), str(cause)) != (type(error), str(error)) else error
    return error


def find_cause(store: Any, rank: int | None = None) -> Exception | None:
    """Returns the first error that was left at the store, if any was: by any process, or by that of `rank` too."""
    if not store.check([_FAILURE] if rank is None else [_FAILURE, f"{_FAILURE} {rank}"]):
        return None
    # Only processes of this trial write there.
    cause: Exception = pickle.loads(bytes.fromhex(store.get(_FAILURE).decode()))  # noqa: S301
    return cause
