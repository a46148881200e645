"""Amounts in messages."""

from __future__ import annotations

from typing import Any

import pytest

from craft.words import format_bytes, parse_bytes, percent


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        (300, 300),
        (300.0, 300),
        ("300", 300),
        ("1.5k", 1500),
        (" 20GB ", 20 * 10**9),
        ("12 gib", 12 * 2**30),
        (-1, None),
        (1.5, None),
        ("", None),
        (None, None),
    ],
)
def test_parse_bytes(written: Any, amount: int | None) -> None:
    assert parse_bytes(written) == amount


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (12 * 2**30, "12.0 GiB"), (5000 * 2**40, "5,000.0 TiB")],
)
def test_format_bytes(amount: float, text: str) -> None:
    assert format_bytes(amount) == text


def test_no_probability_between_0_and_1_is_written_as_one_of_them() -> None:
    assert [percent(each) for each in (0.005, 0.006, 0.994, 0.995)] == ["under 1 %", "1 %", "99 %", "over 99 %"]
