"""GPUs that are not there: tensors on `cuda:0` or `cuda:1` whose numbers the processor computes, for the code as it is.

    with pretended() as gpu:
        train_run(spec, folder)
    gpu.waits            Counter: (why the host waited for the device, the line) -> how often

What a real GPU refuses is refused: operands on two devices, a generator of the CPU, operations without a deterministic form
where only such are allowed, matrix products without cuBLAS's workspace then, and more memory than `room`. A GPU's speed, its
rounding and its allocator are not imitated. No operation passes a tensor on unseen: a dispatch mode meets each of them, runs it
on the tensors' CPU halves and says where the result is.

torch's CPU build needs `gpu.cpp`, which g++ compiles in a second when this module is imported. That has to be before the first
backward pass of a process, when autograd starts its threads; pytest imports all modules before the first test.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo  # before torch.cuda's functions are replaced: it keeps a table of them
from torch import Tensor, nn
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CPU = torch.device("cpu")
MEMORY = 80 * 2**30
HERE, TORCH = Path(__file__), Path(torch.__file__).parent

COPIES = {"copy_", "_to_copy"}
MAY_MIX = COPIES | {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
"""Operations with operands on two devices: a copy, and indexing by a tensor of the CPU."""
READS = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "unique_dim", "unique_consecutive", "_unique2", "bincount"}
SOLVES = {"_linalg_svd", "_linalg_eigh", "linalg_qr", "linalg_eig", "_linalg_det", "linalg_inv_ex", "linalg_cholesky_ex"}
"""Operations after which the host reads the device: a result's value or size, or a solver's status."""
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot"}
UNORDERED = {"kthvalue", "put_", "histc", "median.dim", "cumsum", "nll_loss2d", "grid_sampler_2d_backward"}
"""Operations that CUDA has in no deterministic form (`torch.use_deterministic_algorithms`)."""


class OnGpu(Tensor):
    """A tensor on a GPU by its own word; `host` has its numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor, device: torch.device) -> OnGpu:
        shape = {"strides": host.stride(), "storage_offset": host.storage_offset()}
        tensor = Tensor._make_wrapper_subclass(cls, host.shape, dtype=host.dtype, layout=host.layout, device=device, **shape)
        tensor.host = host
        return tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func is Tensor.tolist:
                return args[0].cpu().tolist()
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {}, None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            copy = OnGpu(self.host.detach().clone(), self.device)
            is_weight = isinstance(self, nn.Parameter)
            memo[id(self)] = nn.Parameter(copy, self.requires_grad) if is_weight else copy.requires_grad_(self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.host.detach().__reduce_ex__(protocol)

    def __repr__(self, **_kwargs: Any) -> str:
        return f"OnGpu({self.host!r})"

    def untyped_storage(self) -> Any:
        return self.host.untyped_storage()

    def data_ptr(self) -> int:
        return self.host.data_ptr()


_data: Any = Tensor.data


def _set_data(tensor: Tensor, value: Tensor) -> None:
    """`tensor.data = value`, which may move a tensor to another device."""
    with torch._C.DisableTorchFunctionSubclass():
        if (isinstance(tensor, OnGpu) or isinstance(value, OnGpu)) and tensor.device != value.device:
            value = value.detach()
            torch.utils.swap_tensors(
                tensor, nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value
            )
            return
        _data.__set__(tensor, value)
        if isinstance(tensor, OnGpu):
            tensor.host = value.host  # type: ignore[attr-defined]


def _get_data(tensor: Tensor) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach() if isinstance(tensor, OnGpu) else _data.__get__(tensor)


class Gpu(TorchDispatchMode):
    """What happens on the pretended GPUs while they are there."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.waits: Counter[tuple[str, str]] = Counter()  # (why, where) -> how often the host waited
        self.room: int | None = None  # the most bytes that looking up a batch's embeddings may take

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {}, self)

    def wait(self, why: str) -> None:
        self.waits[why, _line()] += 1


def _line() -> str:
    """The innermost line outside torch."""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        path = Path(frame.f_code.co_filename)
        if path != HERE and TORCH not in path.parents:
            return f"{'/'.join(path.parts[-3:])}:{line} {frame.f_code.co_name}"
    return "backward pass"


def _compute(func: Any, args: Any, kwargs: dict[str, Any], gpu: Gpu | None) -> Any:
    name, overload = func._schema.name.split("::")[1], func._overloadname
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = [tensor for tensor in tensors if isinstance(tensor, OnGpu)]
    asked = kwargs.get("device")
    if name == "is_pinned":
        return False
    if name == "_pin_memory":
        return args[0].clone()
    place = _place(args[0]) if name == "copy_" else _place(here[0] if here and asked is None else asked)
    lands = place is not None
    if here or lands:
        _refuse(name, overload, tensors, kwargs)
        if gpu is not None:
            _note_waits(gpu, name, args, kwargs, bool(here), lands)
    plain = {key: CPU if key == "device" and lands else value for key, value in kwargs.items() if key != "pin_memory"}
    args, plain = tree_map(lambda leaf: leaf.host if isinstance(leaf, OnGpu) else leaf, (args, plain))
    with torch._C._DisableTorchDispatch():
        result = func(*args, **plain)
    if gpu is not None and gpu.room is not None and name == "embedding" and result.nbytes > gpu.room:
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {result.nbytes} bytes")
    same = {id(tensor.host): tensor for tensor in here}

    def put(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or isinstance(leaf, OnGpu):
            return leaf
        return same.get(id(leaf)) if id(leaf) in same else OnGpu(leaf, place) if place else leaf

    return tree_map(put, result)


def _place(target: Any) -> torch.device | None:
    """The GPU that a tensor is on, or that a device names; None is the CPU."""
    device = target.device if isinstance(target, Tensor) else torch.device(target or "cpu")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else None


def _refuse(name: str, overload: str, tensors: list[Tensor], kwargs: dict[str, Any]) -> None:
    """Raises what CUDA raises, in its words."""
    absent = [tensor for tensor in tensors if not isinstance(tensor, OnGpu) and tensor.dim() and tensor.device == CPU]
    mixed = absent and len(absent) < len(tensors) and name not in MAY_MIX
    if mixed or (len({tensor.device for tensor in tensors if isinstance(tensor, OnGpu)}) > 1 and name not in COPIES):
        devices = f"at least two devices, cuda:0 and {'cpu' if mixed else 'cuda:1'}!"
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {devices} (aten::{name})")
    generator = kwargs.get("generator")
    if generator is not None and generator.device == CPU:
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    if not torch.are_deterministic_algorithms_enabled() or torch.is_deterministic_algorithms_warn_only_enabled():
        return
    if name in UNORDERED | {f"{name}.{overload}"} & UNORDERED and (name != "cumsum" or tensors[0].is_floating_point()):
        raise RuntimeError(
            f"{name} CUDA does not have a deterministic implementation, but you set "
            "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation"
        )
    if name in PRODUCTS and os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in (":4096:8", ":16:8"):
        raise RuntimeError(
            "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or "
            "`at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic because it uses CuBLAS "
            "and you have CUDA >= 10.2. To enable deterministic behavior in this case, you must set an environment variable"
        )


def _note_waits(gpu: Gpu, name: str, args: Any, kwargs: dict[str, Any], begins: bool, lands: bool) -> None:
    if begins and name in READS | SOLVES:
        gpu.wait(name)
    if name not in COPIES:
        return
    source = isinstance(args[1] if name == "copy_" else args[0], OnGpu)
    behind = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
    if source != lands and not behind:
        gpu.wait("copy to the GPU" if lands else "copy from the GPU")


class _Event:
    """`torch.cuda.Event`, by the host's clock."""

    def __init__(self, **_kwargs: Any) -> None:
        self.at = 0.0

    def record(self, *_stream: Any) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Nothing runs."""

    def elapsed_time(self, end: _Event) -> float:
        return 1000 * (end.at - self.at)


def _cuda(gpu: Gpu) -> dict[str, Any]:
    """What torch.cuda says with this GPU."""
    facts = SimpleNamespace(name="pretended H100", total_memory=MEMORY, major=9, minor=0, multi_processor_count=132)
    state = torch.zeros(16, dtype=torch.uint8)
    nothing = dict.fromkeys(
        ("init", "_lazy_init", "set_device", "empty_cache", "reset_peak_memory_stats", "manual_seed", "manual_seed_all"),
        lambda *_: None,
    )
    none = dict.fromkeys(("memory_allocated", "max_memory_allocated", "max_memory_reserved"), lambda *_: 0)
    return {
        **nothing,
        **none,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: gpu.count,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: facts.name,
        "get_device_properties": lambda *_: facts,
        "get_device_capability": lambda *_: (9, 0),
        "is_bf16_supported": lambda *_a, **_k: True,
        "set_per_process_memory_fraction": lambda *_: None,
        "synchronize": lambda *_: gpu.wait("synchronize"),
        "mem_get_info": lambda *_: (MEMORY, MEMORY),
        "Event": _Event,
        "get_rng_state": lambda *_: state.clone(),
        "get_rng_state_all": lambda: [state.clone()],
        "set_rng_state": lambda *_: None,
        "set_rng_state_all": lambda *_: None,
    }


def _load() -> ctypes.CDLL | None:
    """`gpu.cpp`, compiled; None without a compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "gpu.so"
        libraries = [f"-I{TORCH / 'include'}", f"-L{TORCH / 'lib'}", "-lc10", "-ltorch_cpu"]
        flags = ["-shared", "-fPIC", "-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
        subprocess.run([compiler, *flags, str(HERE.with_suffix(".cpp")), *libraries, "-o", str(built)], check=True)
        return ctypes.CDLL(str(built))


_LIBRARY = None if torch.version.cuda else _load()


@contextmanager
def pretended(count: int = 1) -> Iterator[Gpu]:
    """This process has one GPU, or two, inside the block."""
    if _LIBRARY is None:
        pytest.skip("the pretended GPU needs torch's CPU build and g++")
    gpu = Gpu(count)
    lifts, swaps = torch._C._only_lift_cpu_tensors(), torch.__future__.get_swap_module_params_on_conversion()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _cuda(gpu).items():
            patch.setattr(torch.cuda, name, value)
            if hasattr(torch.cuda.random, name):
                patch.setattr(torch.cuda.random, name, value)
        patch.setattr(torch.version, "cuda", "13.0")
        patch.setattr(Tensor, "data", property(_get_data, _set_data), raising=False)
        patch.setattr(_foreach_utils, "_foreach_supported_types", [Tensor, nn.Parameter, OnGpu])
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda") is a copy that the mode meets
        torch.__future__.set_swap_module_params_on_conversion(True)  # .to() keeps weights that are tied
        _LIBRARY.show_gpu(True)
        try:
            with gpu:
                yield gpu
        finally:
            _LIBRARY.show_gpu(False)
            torch._C._set_only_lift_cpu_tensors(lifts)
            torch.__future__.set_swap_module_params_on_conversion(swaps)
