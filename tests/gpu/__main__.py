"""Every check that this machine's GPUs can run, with its figure.

    python -m tests.gpu [-k NAMES]                   exit status 1 if a check fails; a check that cannot run here is skipped
    python -m tests.gpu --device cpu                 tries the checks' own logic without a GPU; also --device pretended

`test_shares.py` alone needs Ray.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
import torch

from orchestrator.record.manifest import hardware

ROOT = Path(__file__).parent.parent.parent


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "pretended", "cpu"], default="cuda", help="where they compute")
    parser.add_argument("-k", metavar="NAMES", help="the checks of these names alone, as pytest's -k")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"No GPU: torch {torch.__version__} finds none that it can use on this machine. Nothing to check.")
        print("python -m tests.gpu --device cpu tries the checks' own logic on the processor.")
        return 0
    on_gpu = options.device == "cuda"
    name, count = (torch.cuda.get_device_name(), torch.cuda.device_count()) if on_gpu else (hardware()["processor"], 0)
    print(f"{name}, torch {torch.__version__}, {count} GPUs")
    flags = ["-m", "gpu", "-q", "--no-header", "-p", "no:cacheprovider", "--rootdir", str(ROOT), f"--device={options.device}"]
    return 1 if pytest.main([str(Path(__file__).parent), *flags, *(["-k", options.k] if options.k else [])]) else 0


if __name__ == "__main__":
    sys.exit(main())
