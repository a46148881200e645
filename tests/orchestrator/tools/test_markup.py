"""Names cut for a narrow place."""

from __future__ import annotations

from orchestrator.tools.markup import shorten


def test_long_names_stay_different() -> None:
    same = "LoRA r8, q k v o gate up down, learning rate "
    names = [f"{same}{rate}, epochs {epochs}" for rate in ("1e-3", "3e-3") for epochs in (1, 2, 10)]
    names += ["short", "x" * 200, f"{'x' * 100}y{'x' * 99}", f"{'x' * 199}y", "another " * 20]
    for most in (24, 30, 56):
        cut = shorten(names, most)
        assert len({*cut}) == len(names)
        assert all(len(short) <= most and ("…" in short) == (short != name) for name, short in zip(names, cut, strict=True))
    assert shorten([names[-1]], 10) == ["another a…"]
