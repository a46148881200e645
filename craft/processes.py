"""The processes that train one trial: `Group`. One process is the trivial case, in which nothing is exchanged.

    way         each process holds                         each process computes
    replicate   the whole model                            its share of a step's examples
    shard       its part of the frozen base, or of all     its share; layers are gathered while they compute (FSDP2)
                that trains; adapters whole
    layers      one process: layers on several GPUs        everything

Every process makes the same calls in the same order, because a call that exchanges something waits for the others. The first
process writes, reports and decides. Tensors on a GPU travel by NCCL, everything else by gloo.

Anybody who reaches the ports of store and gloo can write there. What is read as an object is therefore signed, with a secret
that each process gets from the first one by another way (`Meeting`).
"""

from __future__ import annotations

import hmac
import os
import pickle
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from craft.results import Leave, RunPrevented
from craft.settings import Way

T = TypeVar("T")

BUCKET = 2**24
"""The most numbers of gradients that are summed by one message."""
_INTERFACE = "GLOO_SOCKET_IFNAME"
_FAILURE = "failure"
_HASH, _SIGNATURE = "sha256", 32


@dataclass(frozen=True)
class Group:
    """The processes of a run, as one of them sees them."""

    way: Way = "replicate"
    rank: int = 0
    count: int = 1
    secret: bytes = field(default=b"", repr=False)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, rows: Sequence[T]) -> Sequence[T]:
        """Returns this process's part; parts differ by at most one row."""
        size = len(rows)
        return rows[size * self.rank // self.count : size * (self.rank + 1) // self.count]

    def sum(self, tensor: Tensor) -> Tensor:
        if self.count > 1:
            torch.distributed.all_reduce(tensor)
        return tensor

    def count_all(self, number: Any) -> Any:
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
        return self._send(0, make() if self.is_first else None)

    def gather(self, value: T) -> list[T]:
        """Returns the values of all processes, by rank."""
        return [self._send(rank, value) for rank in range(self.count)] if self.count > 1 else [value]

    def _send(self, rank: int, value: Any) -> Any:
        """Returns the value that the process of a rank has, in all of them."""
        data = sign(pickle.dumps(value), self.secret) if rank == self.rank else b""
        size = int(self.sum(torch.tensor(len(data))))
        sent = torch.frombuffer(bytearray(data or size), dtype=torch.uint8)
        torch.distributed.broadcast(sent, src=rank)
        return value if rank == self.rank else pickle.loads(verify(sent.numpy().tobytes(), self.secret))  # noqa: S301

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
        """Returns the first process's `folder`, or a copy in `scratch` where this one does not see it, by its file `seal`."""
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
    return _current


def is_part(weight: Any) -> bool:
    """Returns whether a tensor is in parts, of which each process holds one."""
    return hasattr(weight, "full_tensor")


def gather_parts(weight: Any) -> Tensor:
    return weight.full_tensor() if is_part(weight) else weight


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
    """Where the processes of one try meet: the address of the first one's store, and how long one waits for the others in an
    exchange (`seconds`)."""

    host: str
    port: int
    count: int
    way: Way
    seconds: float
    secret: bytes = field(repr=False)

    def open_store(self) -> Any:
        return torch.distributed.TCPStore(self.host, self.port, None, False, timedelta(seconds=self.seconds))


def make_store(host: str, seconds: float) -> Any:
    """Returns the store of the first process, which listens at `host` alone; torch's own would at all addresses."""
    family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as listener:
        listener.bind(address)
        listener.listen()
        port, wait = listener.getsockname()[1], timedelta(seconds=seconds)
        return torch.distributed.TCPStore(host, port, None, True, wait, False, master_listen_fd=listener.detach())


@contextmanager
def _listening_at(host: str) -> Iterator[None]:
    """Lets gloo listen at loopback where the processes meet there; it looks at the environment when it starts."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if not host.startswith("127.") or not names or _INTERFACE in os.environ:
        yield
        return
    os.environ[_INTERFACE] = names[0]
    try:
        yield
    finally:
        del os.environ[_INTERFACE]


def sign(data: bytes, secret: bytes) -> bytes:
    """Returns `data` behind its signature."""
    return hmac.digest(secret, data, _HASH) + data


def verify(signed: bytes, secret: bytes) -> bytes:
    """Returns the data of `sign`. Raises RunPrevented if it has another signature."""
    data = signed[_SIGNATURE:]
    if not hmac.compare_digest(signed[:_SIGNATURE], hmac.digest(secret, data, _HASH)):
        raise RunPrevented("the processes of the trial got a message that none of them wrote")
    return data


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
            with _listening_at(meeting.host):
                torch.distributed.init_process_group(backend, store=store, timeout=wait, rank=rank, world_size=meeting.count)
        _current = Group(meeting.way, rank, meeting.count, meeting.secret)
        yield
    except Exception as error:
        cause = leave_cause(store, meeting, rank, error)
        if gpu and torch.distributed.is_initialized():  # what waits on a GPU for the others would wait for ever
            torch.distributed.distributed_c10d._abort_process_group()
        if cause is error:
            raise
        raise cause from error
    finally:
        _current = outer_group
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def leave_cause(store: Any, meeting: Meeting, rank: int, error: Exception) -> Exception:
    """Leaves `error` at the store if it is the first one there, and returns the first one."""
    packed = b""
    with suppress(Exception):  # it holds what cannot be sent
        packed = pickle.dumps(error)
    with suppress(Exception):  # a store that is gone with the first process
        store.set(f"{_FAILURE} {rank}", "")
        entry = pickle.dumps((f"{type(error).__qualname__}: {error}", packed))
        store.compare_set(_FAILURE, "", sign(entry, meeting.secret).hex())
        cause = find_cause(store, meeting)
        return cause if cause and (type(cause), str(cause)) != (type(error), str(error)) else error
    return error


def find_cause(store: Any, meeting: Meeting, rank: int | None = None) -> Exception | None:
    if not store.check([_FAILURE] if rank is None else [_FAILURE, f"{_FAILURE} {rank}"]):
        return None
    try:
        text, packed = pickle.loads(verify(bytes.fromhex(store.get(_FAILURE).decode()), meeting.secret))  # noqa: S301
    except (ValueError, RunPrevented):
        return RunPrevented("the store of the trial has an entry that none of its processes wrote")
    with suppress(Exception):  # a class that is not here, or is made by other values
        error: Exception = pickle.loads(packed)  # noqa: S301
        return error
    return RuntimeError(text)
