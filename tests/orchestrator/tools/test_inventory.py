"""Versions and GPUs of this machine, asked for without importing anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.record.manifest import hardware
from orchestrator.tools.inventory import gpus, versions


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts a program called nvidia-smi on the path, alone."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_versions_leave_out_what_is_not_installed() -> None:
    assert list(versions(["numpy", "no-such-package-here"])) == ["numpy"]


def test_a_name_with_a_comma_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "echo 'RTX, big, 24576, 550.1'")
    assert gpus("memory.total", "driver_version") == [["RTX, big", "24576", "550.1"]]
    assert hardware()["gpus"] == ["RTX, big, 24576 MiB, 550.1"]


def test_no_nvidia_smi_is_no_gpu_and_a_broken_one_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus("memory.total") == []
    stand_in(tmp_path, monkeypatch, "exit 9")
    with pytest.raises(subprocess.CalledProcessError):
        gpus("memory.total")
    assert hardware()["gpus"] == []
