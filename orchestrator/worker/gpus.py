"""Where a trial computes: on its share of a GPU, which torch must be able to use; without a share, on the processor alone.

    resources.gpu: 0      no GPU is visible to the process, whatever the machine has
    resources.gpu: 0.5    Ray's GPU for it is visible; the trial fails at once, with torch's reason, if torch cannot use it

Ray 2.60 leaves CUDA_VISIBLE_DEVICES alone in a process without a share (`set_visible_accelerator_ids` in
`ray/_private/utils.py`). Such a process would see all GPUs, and every trial of a sweep would train on the first one. Ray's own
switch for it (RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=1) writes an empty HIP_VISIBLE_DEVICES, which hides nothing from ROCm.
No Ray here.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from craft.results import Unavailable
from craft.trainer.memory import CUBLAS_WORKSPACE
from orchestrator.plan.gpu_shares import Gpu, describe_gpu
from orchestrator.worker.memory_limits import choose_segments

HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}
"""What hides all GPUs. CUDA takes an empty list as none. ROCm takes an empty list as no list at all, and an index that is not
there as the list's end (`rocdevice.cpp` of ROCm's clr)."""
SIDE = 64


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


def require_gpu(visible: int = 1) -> Gpu:
    """Returns the GPU of this process, after a matrix product on it.

    Args:
        visible: how many GPUs the process is to see, its own first.

    Raises:
        Unavailable: torch cannot compute there; the message names the machine and has torch's reason.
    """
    import torch

    try:
        if torch.version.cuda is None and torch.version.hip is None:
            raise RuntimeError(f"torch {torch.__version__} is built without CUDA; install a build for this machine's driver")
        torch.cuda.init()
        if (count := torch.cuda.device_count()) > visible:
            raise RuntimeError(
                f"the process sees {count} and its trial has {visible}, or a share of one. Unset "
                "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES (NOSET_HIP_...) where Ray starts"
            )
        ones = torch.ones(SIDE, SIDE, device="cuda")
        total = (ones @ ones).sum().item()
        if total != SIDE**3:
            raise RuntimeError(f"a product of matrices gives {total:g} instead of {SIDE**3}")
        return describe_gpu(torch.cuda.current_device())
    except Exception as error:  # torch and the driver have many kinds of error
        reason = " ".join(str(error).split())[:400] or type(error).__name__
        raise Unavailable(f"{socket.gethostname()} gave a GPU that torch cannot use: {reason}") from error
