"""Metrics as people read them."""

from __future__ import annotations

import pytest

from orchestrator.results.metrics import amount, unit_of


@pytest.mark.parametrize(
    ("name", "value", "shown", "unit"),
    [
        ("trainable_parameters", 9216.0, "9,216", ""),
        ("peak_memory_bytes", 844197888.0, "805.1 MiB", "MiB"),
        ("seconds", 450.7, "7 min 31 s", "min"),
        ("step_seconds", 0.2248, "225 ms", "ms"),
        ("energy_kept", 0.1294, "13 %", "%"),
        ("p_front", 0.9995, "1.00", ""),
        ("score/rte", -0.001, "0.00", ""),
        ("an_older_one", 0.123456, "0.1235", ""),
    ],
)
def test_an_amount_is_written_with_its_unit(name: str, value: float, shown: str, unit: str) -> None:
    assert amount(name, value) == shown
    factor, word = unit_of(name, [value, None])
    assert word == unit
    assert value / factor == pytest.approx(value / {"MiB": 2**20, "min": 60, "ms": 1e-3, "%": 1e-2}.get(unit, 1))
