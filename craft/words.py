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


def nearest(name: Any, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the known name nearest to `name`, in capitals or not; empty if no name is near.

    What other libraries call a setting counts as near, and so does NAME to `custom/NAME`.
    """
    by_folded = {one.lower(): one for one in known}
    same = ELSEWHERE.get(str(name))
    same = same if same in by_folded else ELSEWHERE.get(str(same))  # r is rank, or CRAFT's ranks
    if same in by_folded:
        return f" Did you mean {same!r}?"
    if (own := f"custom/{str(name).lower()}") in by_folded:
        return f" Did you mean {by_folded[own]!r}?"
    found = difflib.get_close_matches(str(name).lower()[:80], by_folded, n=1)
    return f" Did you mean {by_folded[found[0]]!r}?" if found else ""


def parse_bytes(written: Any) -> int | None:
    """Bytes from a whole number, or from text such as `12 GiB`, `20GB`, `1.5k`; None if `written` is neither."""
    found = None
    if isinstance(written, int | float) and not isinstance(written, bool):
        found = re.fullmatch(r"(\d+)(?:\.0)?()", str(written))
    elif isinstance(written, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", written)
    if found is None or found[2].lower() not in _UNITS:
        return None
    return int(float(found[1]) * _UNITS[found[2].lower()])


def format_bytes(amount: float) -> str:
    """Bytes for people: `312 B`, `64.8 KiB`, `12.0 GiB`."""
    if amount < 1024:
        return f"{amount:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:,.1f} TiB"


def format_duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`."""
    whole = int(seconds + 0.5)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60:02d} min"
    if minutes:
        return f"{minutes} min {whole % 60:02d} s"
    return f"{whole} s"


def redact(text: str) -> str:
    """`text` with `***` in place of the user and password of every URI in it, and of secrets in query strings."""
    return _SECRET_QUERY.sub(r"\1***", _USERINFO.sub("***@", text))


def redacted(content: Any) -> Any:
    """Plain data with every string in its mappings and lists redacted."""
    if isinstance(content, str):
        return redact(content)
    if isinstance(content, dict):
        return {redacted(name): redacted(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [redacted(item) for item in content]
    return content


MARKUP = "\\`*_[]|#!~"


def plain(words: object) -> str:
    """Text on one line that Markdown and HTML show as it is, without markup, links or pictures: MLflow and model hubs show
    descriptions as HTML, and would fetch a picture's address."""
    line = " ".join(str(words).split())
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        line = line.replace(sign, safe)
    return "".join(f"\\{sign}" if sign in MARKUP else sign for sign in line)


def paragraphs(words: str) -> str:
    """A text of several lines, each as a paragraph of plain text."""
    return "\n\n".join(plain(line) for line in words.splitlines() if line.strip())
