"""Every check that this machine's GPUs can run, with its figure.

    python -m tests.gpu [-k NAMES]                   exit status 1 if a check fails; a check that cannot run here is skipped
    python -m tests.gpu --device cpu                 tries the checks' own logic without a GPU; also --device pretended
    python -m tests.gpu --benchmarks FILE.md         the times of a step on the GPU; appends their tables to FILE.md

`test_shares.py` alone needs Ray.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import torch

from tests.benchmarks.timing import machine

ROOT = Path(__file__).parent.parent.parent


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "pretended", "cpu"], default="cuda", help="where they compute")
    parser.add_argument("-k", metavar="NAMES", help="the checks of these names alone, as pytest's -k")
    parser.add_argument("--benchmarks", type=Path, metavar="FILE", help="run the benchmark instead")
    parser.add_argument("--quick", action="store_true", help="few rounds of the benchmark: shows that it runs, says little")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"No GPU: torch {torch.__version__} finds none that it can use on this machine. Nothing to check.")
        print("python -m tests.gpu --device cpu tries the checks' own logic on the processor.")
        return 0
    if options.benchmarks:
        return benchmark(options.benchmarks, options.device, options.quick)
    on_gpu = options.device == "cuda"
    print(f"{machine('cuda' if on_gpu else 'cpu')}, {torch.cuda.device_count() if on_gpu else 0} GPUs")
    flags = ["-m", "gpu", "-q", "--no-header", "-p", "no:cacheprovider", "--rootdir", str(ROOT), f"--device={options.device}"]
    return 1 if pytest.main([str(Path(__file__).parent), *flags, *(["-k", options.k] if options.k else [])]) else 0


def benchmark(file: Path, device: str, quick: bool) -> int:
    """Appends what the benchmark prints to `file`."""
    command = ["python", "-m", "tests.benchmarks.step_time", "--device", device, *(["--quick"] if quick else [])]
    print(" ".join(command), flush=True)
    done = subprocess.run([sys.executable, *command[1:]], cwd=ROOT, text=True, capture_output=True)
    said = done.stdout if not done.returncode else f"{done.stdout}{done.stderr}\nended with status {done.returncode}\n"
    print(said, flush=True)
    with file.open("a") as page:
        page.write(f"# Measured on a GPU\n\n{date.today().isoformat()}, {machine(device)}.\n\n```\n{' '.join(command)}\n")
        page.write(f"```\n\n```text\n{said.rstrip()}\n```\n")
    return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
