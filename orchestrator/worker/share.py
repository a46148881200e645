"""A trial's share of a machine: the GPU on which it computes, and memory. One that takes more runs out of memory alone, and its
neighbours keep what is theirs. No Ray here.

    resources.gpu: 0                 no GPU is visible to the process, whatever the machine has
    resources.gpu: 0.25 of 24 GiB    6 GiB = 0.5 GiB of CUDA context + 5.5 GiB that torch's allocator may reserve; a trial fails
                                     with torch's reason if torch cannot use Ray's GPU for it
    resources.memory                 RLIMIT_DATA = what the process had + resources.memory + files of weights that torch mapped

The system refuses what lies beyond RLIMIT_DATA before any of it is touched, in torch's and numpy's C code too. A thread that
watches would come too late: while one large object is filled it does not run. The limit counts every private mapping that may
be written, and safetensors maps files so, although their pages cost nothing. So it grows with every file that torch maps.

Ray 2.60 leaves CUDA_VISIBLE_DEVICES alone in a process without a share (`set_visible_accelerator_ids` in
`ray/_private/utils.py`). Such a process would see all GPUs, and every trial of a sweep would train on the first one. Ray's own
switch for it (RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=1) writes an empty HIP_VISIBLE_DEVICES, which hides nothing from ROCm.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from craft.results import Unavailable
from craft.settings import CUBLAS_WORKSPACE
from craft.words import format_bytes
from orchestrator.plan.ways import CONTEXT_BYTES, Gpu, describe_gpu

HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}
"""What hides all GPUs. CUDA takes an empty list as none. ROCm takes an empty list as no list at all, and an index that is not
there as the list's end (`rocdevice.cpp` of ROCm's clr)."""
SIDE = 64
STATUS = Path("/proc/self/status")


def keep_to_share(gpu: float, ids: Sequence[object] = ()) -> None:
    """Hides the machine's GPUs from this process, except its own.

    Call it in every process of a trial before anything asks torch for a GPU: torch looks once a process. A process that Ray
    uses again gets a trial of equal resources, so what is hidden stays right.

    Args:
        ids: Ray's names of the GPU. Ray makes it visible itself, unless RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES is set, as
            in images for vLLM: then every trial would compute on the machine's first GPU.
    """
    os.environ.setdefault(*CUBLAS_WORKSPACE)
    if not gpu:
        os.environ.update(HIDDEN)
        return
    if ids:
        os.environ.update(dict.fromkeys(HIDDEN, ",".join(map(str, ids))))
    choose_segments()


class GpuFailed(Unavailable):
    """Torch is set up for GPUs, and this one does not work now."""


def require_gpu(visible: int = 1) -> Gpu:
    """Returns the GPU of this process, after a matrix product on it.

    Args:
        visible: how many GPUs the process is to see, its own first.

    Raises:
        Unavailable: torch cannot compute there; the message names the machine and has torch's reason.
    """
    import torch

    failure = Unavailable
    try:
        if torch.version.cuda is None and torch.version.hip is None:
            raise RuntimeError(f"torch {torch.__version__} is built without CUDA; install a build for this machine's driver")
        if (count := torch.cuda.device_count()) > visible:
            raise RuntimeError(
                f"the process sees {count} and its trial has {visible}, or a share of one. Unset "
                "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES (NOSET_HIP_...) where Ray starts"
            )
        failure = GpuFailed
        torch.cuda.init()
        ones = torch.ones(SIDE, SIDE, device="cuda")
        total = (ones @ ones).sum().item()
        if total != SIDE**3:
            raise RuntimeError(f"a product of matrices gives {total:g} instead of {SIDE**3}")
        return describe_gpu(torch.cuda.current_device())
    except Exception as error:  # torch and the driver have many kinds of error
        reason = " ".join(str(error).split())[:400] or type(error).__name__
        raise failure(f"{socket.gethostname()} gave a GPU that torch cannot use: {reason}") from error


SEGMENTS = "expandable_segments:True"
"""Memory that one size of tensors has left is used for another size, where the limit leaves no room for both."""


def choose_segments() -> None:
    """Sets the allocator's way with segments for this process, unless the user has set it. To be called before CUDA starts.

    Not on a MIG slice and not where NVML is closed: there torch 2.13 ends in a failed assertion (`NVML_SUCCESS == r`). It reads
    both names and prefers the first.
    """
    slices = any("MIG-" in os.environ.get(name, "") for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"))
    if not slices and nvml_answers() and not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        os.environ["PYTORCH_ALLOC_CONF"] = SEGMENTS


def nvml_answers() -> bool:
    """Returns whether the driver's library for watching GPUs works for this process, and divides no GPU into MIG slices."""
    try:
        nvml, count = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint()
    except OSError:
        return False
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return False
    for index in range(count.value):
        gpu, current_mode, pending_mode = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu))
        if not nvml.nvmlDeviceGetMigMode(gpu, ctypes.byref(current_mode), ctypes.byref(pending_mode)) and current_mode.value:
            return False
    return True


def limit_gpu_memory(share: float) -> None:
    """Limits torch in this process to `share` of its GPU. A process that is used again gets trials of equal shares."""
    import torch

    if not 0 < share < 1 or not torch.cuda.is_available():
        return
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    if share * total <= CONTEXT_BYTES:
        raise Unavailable(
            f"resources.gpu: {share:g} of this GPU is {format_bytes(share * total)}, and a CUDA context alone takes "
            f"{format_bytes(CONTEXT_BYTES)}: give the trial a larger share"
        )
    torch.cuda.set_per_process_memory_fraction(share - CONTEXT_BYTES / total)


@contextmanager
def limit_host_memory(nbytes: int | None) -> Iterator[None]:
    """Limits what this process allocates inside to `nbytes`; beyond that it runs out of memory. Without a number, or a /proc
    that says what is allocated already (macOS has none), there is no limit."""
    if nbytes is None or not STATUS.exists():
        yield
        return
    # A worker of Ray has a gigabyte mapped before it does anything (stacks of many threads, torch), and a CUDA context maps
    # more: the trial's share begins above all that.
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    earlier_limits, from_file = resource.getrlimit(resource.RLIMIT_DATA), torch.UntypedStorage.from_file
    lines = STATUS.read_text(encoding="utf-8").splitlines()
    limit = nbytes + next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmData:"))  # RLIMIT_DATA counts it

    def raise_to(bound: int) -> None:
        hard = earlier_limits[1]
        resource.setrlimit(resource.RLIMIT_DATA, (bound if hard == resource.RLIM_INFINITY else min(bound, hard), hard))

    def mapped(filename: str, shared: bool = False, nbytes: int = 0) -> Any:
        nonlocal limit
        limit += 0 if shared else nbytes
        raise_to(limit)
        return from_file(filename, shared=shared, nbytes=nbytes)

    raise_to(limit)
    # torch's only way to map a file: safetensors and torch.load come through here, whatever is read, by any library.
    torch.UntypedStorage.from_file = mapped  # type: ignore[method-assign]
    try:
        yield
    finally:
        del torch.UntypedStorage.from_file  # what it inherits takes its place again
        resource.setrlimit(resource.RLIMIT_DATA, earlier_limits)
