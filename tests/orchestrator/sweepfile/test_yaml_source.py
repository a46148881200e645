"""A sweep file and `--set` read a value by the same rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.sweepfile.plain_yaml import Source, read_yaml

MEANT: dict[str, Any] = {
    "yes": "yes",
    "off": "off",
    "true": True,
    "1e-4": 1e-4,
    "1E3": 1000.0,
    ".5": 0.5,
    "70_000": 70_000,
    "010": 10,
    "0x10": "0x10",
    "12:30": "12:30",
    "2026-11-21": "2026-11-21",
    "'3'": "3",
    "~": None,
    "": None,
    "[no, 1e3, {a: on}]": ["no", 1000.0, {"a": "on"}],
}


@pytest.mark.parametrize("written", MEANT)
def test_two_ways_to_write_a_value_mean_the_same(tmp_path: Path, written: str) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(f"key: {written}\n")
    overridden = Source({}, {}, "none")
    overridden.override(f"key={written}")
    given = (read_yaml(file).content["key"], overridden.content["key"])
    assert given == (MEANT[written],) * 2
