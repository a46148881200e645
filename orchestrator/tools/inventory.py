"""What this machine has: versions of packages and NVIDIA GPUs. No package is imported to ask for them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions by package; a package that is not installed is left out."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def capacity() -> dict[str, float]:
    """Cores and bytes of memory of this machine, by Ray's names."""
    return {"CPU": float(os.cpu_count() or 1), "memory": float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))}


def gpus(*fields: str) -> list[list[str]]:
    """One row a GPU: its name, then the `fields` of `nvidia-smi --help-query-gpu`, memory in MiB.

    All GPUs of the machine are listed. PyTorch lists none in a process that Ray gives no GPU.

    Raises:
        OSError, subprocess.SubprocessError: `nvidia-smi` is here and fails; where it is absent, there are no GPUs.
    """
    query = ["nvidia-smi", f"--query-gpu={','.join(('name', *fields))}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, timeout=30, check=True, encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [[part.strip() for part in line.rsplit(",", len(fields))] for line in done.stdout.strip().splitlines()]
