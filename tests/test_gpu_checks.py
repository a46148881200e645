"""`python -m tests.gpu` and what keeps all other tests on the CPU; the checks themselves are in `tests/gpu`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import wants_gpus

ROOT = Path(__file__).parent.parent
CHECKS = """
import pytest

def test_it_holds(record_property):
    record_property("figure", "ratio 0.9")

@pytest.mark.parametrize("bits", [4])
def test_it_fails(bits):
    assert bits == 8

def test_it_cannot_run_here():
    pytest.skip("needs 2 GPUs, 1 here")
"""
RUN = """
import sys
from pathlib import Path
import pytest
from tests.gpu.table import Rows
rows = Rows()
pytest.main([sys.argv[1], "-q", "-p", "no:cacheprovider"], plugins=[rows])
rows.write(Path(sys.argv[2]), "a machine")
"""


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


def test_a_row_of_the_table_says_what_was_found_why_it_failed_or_why_it_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_some_checks.py").write_text(CHECKS)
    file = tmp_path / "rows.json"
    command = [sys.executable, "-c", RUN, str(tmp_path / "test_some_checks.py"), str(file)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    content = json.loads(file.read_text())
    assert content["machine"] == "a machine"
    assert [(row["check"], row["result"], row["figure"]) for row in content["rows"]] == [
        ("some checks: it holds", "passed", "ratio 0.9"),
        ("some checks: it fails, 4", "failed", "assert 4 == 8"),
        ("some checks: it cannot run here", "skipped", "needs 2 GPUs, 1 here"),
    ]


def test_a_machine_without_a_gpu_is_told_so(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.gpu"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("No GPU: torch")
