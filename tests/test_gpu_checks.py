"""`python -m tests.gpu` and what keeps all other tests on the CPU; the checks themselves are in `tests/gpu`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import wants_gpus

ROOT = Path(__file__).parent.parent


def test_tests_and_their_child_processes_see_no_gpu() -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert torch.cuda.device_count() == 0


@pytest.mark.parametrize(
    ("marks", "wanted"),
    [
        ("gpu", True),
        ("gpu and not cluster", True),
        ("not slow and not cluster and not browser and not gpu", False),
        ("", False),
        ("slow or cluster", False),
        ("gpu or slow", False),
        ("not gpu", False),
    ],
)
def test_gpus_are_seen_by_tests_for_gpus_alone(marks: str, wanted: bool) -> None:
    assert wants_gpus(marks) is wanted


@pytest.mark.slow
def test_a_machine_without_a_gpu_is_told_so(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.gpu"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("No GPU: torch")
