"""Words that people read and write, the same in every message: near names, amounts of bytes, durations, counts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}

ELSEWHERE = {
    "target_modules": "projections",
    "r": "rank",
    "lora_r": "rank",
    "rank": "ranks",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "lr": "learning_rate",
    "num_train_epochs": "epochs",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "gradient_accumulation",
    "max_seq_length": "max_length",
    "lr_scheduler_type": "schedule",
    "base_model": "model",
    "model_name_or_path": "model",
}
"""What PEFT, Trainer and others call a setting -> its name here."""


def nearest(name: Any, names: Iterable[str]) -> str:
    """Writes ` Did you mean 'x'?` for the nearest of `names`, in capitals or not; returns an empty text if none is near.

    What other libraries call a setting counts as near, and so does NAME to `custom/NAME`.
    """
    by_folded = {candidate.lower(): candidate for candidate in names}
    same = ELSEWHERE.get(str(name))
    same = same if same in by_folded else ELSEWHERE.get(str(same))  # r is rank, or CRAFT's ranks
    if same in by_folded:
        return f" Did you mean {same!r}?"
    if (custom_name := f"custom/{str(name).lower()}") in by_folded:
        return f" Did you mean {by_folded[custom_name]!r}?"
    matches = difflib.get_close_matches(str(name).lower()[:80], by_folded, n=1)
    return f" Did you mean {by_folded[matches[0]]!r}?" if matches else ""


def parse_bytes(written: Any) -> int | None:
    """Reads bytes from a whole number, or from text such as `12 GiB`, `20GB`, `1.5k`; None if `written` is neither."""
    match = None
    if isinstance(written, int | float) and not isinstance(written, bool):
        match = re.fullmatch(r"(\d+)(?:\.0)?()", str(written))
    elif isinstance(written, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", written)
    if match is None or match[2].lower() not in _UNITS:
        return None
    return int(float(match[1]) * _UNITS[match[2].lower()])


def format_bytes(amount: float) -> str:
    """Writes bytes for people: `312 B`, `64.8 KiB`, `12.0 GiB`."""
    if amount < 1024:
        return f"{amount:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:,.1f} TiB"


def format_duration(seconds: float) -> str:
    """Writes a duration for people: `45 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`."""
    rounded = int(seconds + 0.5)
    minutes, hours, days = rounded // 60, rounded // 3600, rounded // 86400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60:02d} min"
    if minutes:
        return f"{minutes} min {rounded % 60:02d} s"
    return f"{rounded} s"


def format_forecast(seconds: float) -> str:
    """Writes a duration that is foreseen, as exactly as it may be known: `4 s`, `45 s`, `3 min`, `2 h 05 min`."""
    step = 1 if seconds < 10 else 5 if seconds < 90 else 60
    return format_duration(step * max(1, round(seconds / step))).removesuffix(" 00 s")


def printable(text: object) -> str:
    """Writes text on one line: line ends and whatever else is not seen become escapes."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in str(text))


def points(value: float) -> str:
    """Writes a difference of scores: `1 point`, `0.6 points`."""
    return f"{value:g} {plural(value, 'point')}"


def plural(count: float, noun: str) -> str:
    """Returns a noun as it follows a count, without the count: `seed` after 1, `seeds` after any other."""
    return noun if count == 1 else f"{noun}s"


def list_some(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Returns the first names and how many more there are: `a, b and 3 more`."""
    return between.join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def percent(probability: float) -> str:
    """Writes a probability: `7 %`, `under 1 %`."""
    return "under 1 %" if probability <= 0.005 else "over 99 %" if probability >= 0.995 else f"{100 * probability:.0f} %"
