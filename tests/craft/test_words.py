"""Names, amounts and addresses in messages."""

from __future__ import annotations

from typing import Any

import pytest

from craft.words import format_bytes, nearest, parse_bytes, percent


def test_nearest() -> None:
    assert nearest("LOAR", ["lora", "vera"]) == " Did you mean 'lora'?"
    assert nearest("full", ["lora", "vera"]) == ""


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        (300, 300),
        (300.0, 300),
        ("300", 300),
        ("1.5k", 1500),
        (" 20GB ", 20 * 10**9),
        ("12 gib", 12 * 2**30),
        (True, None),
        (-1, None),
        (1.5, None),
        ("12 parsecs", None),
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
