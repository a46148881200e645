"""What a sweep ran with: versions, machine, code. Kept with its record, so that a number can be traced to what made it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("craft-sweeps", "torch", "transformers", "peft", "datasets", "safetensors", "ray", "mlflow", "numpy", "scipy")


def manifest() -> dict[str, Any]:
    """Versions of what decides numbers, the machine's kind, and the commit where the code is a git checkout."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "commit": _commit(),
        "command": " ".join(Path(sys.argv[0]).name if index == 0 else part for index, part in enumerate(sys.argv)),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
