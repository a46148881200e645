"""Words that people read and write, the same in every message: near names, amounts of bytes, addresses without passwords."""

from __future__ import annotations

import difflib
import io
import re
import sys
from collections.abc import Iterable
from typing import Any

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}

_USERINFO = re.compile(r"(?<=://)(?!/)(?:[^\s\"'<>/:]*:[^\s\"'<>]*|[^\s\"'<>/]*)@")
"""A user with or without a password, which may hold any sign. An "@" further on, in a path or a bucket, is part of a name."""
_SECRET_QUERY = re.compile(r"(?i)([?&;\s](?:password|passwd|pwd|sslpassword|token|secret|access_key|api_key)=)[^&;\s\"']+")


def be_printable() -> None:
    """Makes stdout replace characters that its encoding lacks (a Latin-1 terminal), where they would end the command.

    Every command calls it first. Python does so for stderr by itself.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


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
    if (own := f"custom/{str(name).lower()}") in by_folded:
        return f" Did you mean {by_folded[own]!r}?"
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


def redact(text: str) -> str:
    """Puts `***` in place of the user and password of every URI in `text`, and of secrets in query strings."""
    return _SECRET_QUERY.sub(r"\1***", _USERINFO.sub("***@", text))


def redacted(value: Any) -> Any:
    """Redacts every string in the mappings and lists of plain data."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redacted(key): redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return value


MARKUP = "\\`*_[]|#!~"


def plain(text: object) -> str:
    """Writes text on one line that Markdown and HTML show as it is, without markup, links or pictures: MLflow and model hubs
    show descriptions as HTML, and would fetch a picture's address."""
    line = " ".join(str(text).split())
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        line = line.replace(sign, safe)
    return "".join(f"\\{sign}" if sign in MARKUP else sign for sign in line)


def paragraphs(text: str) -> str:
    """Writes a text of several lines, each as a paragraph of plain text."""
    return "\n\n".join(plain(line) for line in text.splitlines() if line.strip())
