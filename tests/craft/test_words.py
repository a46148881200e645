"""Names, amounts and addresses in messages."""

from __future__ import annotations

from typing import Any

import pytest

from craft.words import _Secrets, format_bytes, nearest, parse_bytes, shorten


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


def test_long_names_stay_different() -> None:
    same = "LoRA r8, q k v o gate up down, learning rate "
    names = [f"{same}{rate}, epochs {epochs}" for rate in ("1e-3", "3e-3") for epochs in (1, 2, 10)]
    names += ["short", "x" * 200, f"{'x' * 100}y{'x' * 99}", f"{'x' * 199}y", "another " * 20]
    for most in (24, 30, 56):
        cut = shorten(names, most)
        assert len({*cut}) == len(names)
        assert all(len(short) <= most and ("…" in short) == (short != name) for name, short in zip(names, cut, strict=True))
    assert shorten([names[-1]], 10) == ["another a…"]


@pytest.mark.parametrize("secret", ["語" * 86, "k" * 300, "x\0y" * 5], ids=["not ASCII", "long", "with a null"])
def test_a_secret_that_is_no_name_of_a_file_is_hidden(secret: str) -> None:
    assert _Secrets({"MY_TOKEN": secret}).hide(f"it is {secret}.") == "it is ***."
