"""Words that people read and write, the same in every message: near names, amounts of bytes, addresses without passwords."""

from __future__ import annotations

import base64
import difflib
import html
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}

_END = r"[\s,;:)}\]]|$"
_PORT = rf"\d{{1,5}}(?:[\"'<>]?(?:{_END})|[/?#])"
_USERINFO = re.compile(
    rf"(?<=://)(?!/)(?:[^\s/:]*:(?!{_PORT})(?:(?!://)[^\n])*|[^\s/:]*:[^\s\"'<>]*|(?:[^\s/:\"'<>]|[\"'<>](?!{_END}))*)@"
)
"""A user with or without a password, which may hold any sign. An "@" further on, in a path or a bucket, is part of a name."""
_QUERY = re.compile(rf"(?<=[?&;])([\w.%\[\]-]+)=((?:[^&\s\"'<>]|[\"'<>](?!{_END}))*)")
_PAIR = re.compile(r"(?:^|[;&?\s])\s*([\w.-]+) ?= ?(\{[^}]*\}|[^;&\s]*)")
_SECRET_NAME = re.compile(
    # A view on MLflow's page has a key, which opens nothing else.
    r"(?i)(?:(?<!viewStateShare)key|token|secret|pwd|sig|signature|auth|pass|passwd|password|passphrase|credentials?)$"
)
_SECRET_TEXT = re.compile(
    r"(?i)((?:^|[\s,;(])[\w.-]*(?:password|passwd|pwd|secret|access_key|account_key|api_key|(?<![\w.-])token)=)[^&;\s\"']+"
)
"""A password in a text that is no address, as in the settings of a database's driver."""


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


class _Secrets:
    """What `redact` hides wherever it is in a text: parts of the addresses that this process uses, and of its environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._addresses: dict[str, str] = {}
        self._anywhere: set[str] = set()
        self._words: set[str] = set()
        for name, value in environment.items():
            if "://" in value:
                self.add_address(value)
            elif _SECRET_NAME.search(name) and name not in ("PWD", "OLDPWD") and not _is_path(value):
                self._add(value)
                self._add_nested(value)
        self._compile()

    def add_address(self, address: str) -> None:
        """Adds user, password and the values of the query of an address, as it writes them and as they are meant."""
        scheme, separator, location = address.partition("://")
        match = _USERINFO.search(address)
        userinfo = match[0][:-1] if match and match.start() == len(scheme) + 3 else ""
        place, mark, query = location[len(userinfo) + bool(userinfo) :].partition("?")
        if not separator or scheme.startswith("sqlite") or not (userinfo or query):
            return
        user, colon, password = userinfo.partition(":")
        self._add(password if colon else user)
        if colon:
            self._words |= _spellings(user)
            self._anywhere.add(base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode())
        for pair in query.split("&"):
            name, _, value = pair.partition("=")
            if _SECRET_NAME.search(name) or not (_is_word(value) or unquote(value).startswith("/")):
                self._add(value)
            self._add_nested(value)
        names = "&".join(f"{pair.partition('=')[0]}=***" for pair in query.split("&"))
        self._addresses[address] = f"{scheme}://{'***@' if userinfo else ''}{place}{mark}{names if mark else ''}"
        self._compile()

    def hide(self, text: str) -> str:
        """Returns a text without the secrets."""
        for address, public in self._addresses.items():
            text = text.replace(address, public)
        anywhere, after_role = self._patterns
        return after_role.sub(r"\1***", anywhere.sub("***", text))

    def _add(self, secret: str) -> None:
        (self._words if _is_word(secret) else self._anywhere).update(_spellings(secret))

    def _add_nested(self, value: str) -> None:
        for name, secret in _PAIR.findall(_decode(value)):
            if _SECRET_NAME.search(name):
                self._add(secret.strip("{}"))

    def _compile(self) -> None:
        anywhere, short = (
            "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)" for texts in (self._anywhere, self._words)
        )
        role = r"(?i)\b((?:user(?:name)?|login|role|uid|password|pwd)[ =:]+[\"'`]?)"
        self._patterns = re.compile(anywhere), re.compile(rf"{role}(?:{short})\b")


def _is_path(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # longer than a name may be, or in a folder that must not be read
        return False


def _is_word(secret: str) -> bool:
    """Returns whether a text may be a name or a part of a path, too. Hiding it everywhere would spoil other texts, so it is
    hidden after `user` or `password` alone."""
    return len(secret) < 6 or (len(secret) < 12 and secret.isalpha() and secret.islower())


def _spellings(secret: str) -> set[str]:
    """Returns a text as addresses, Python, JSON and HTML write it."""
    plain_texts = {secret, unquote(secret), unquote_plus(secret)}
    writers: tuple[Callable[[str], str], ...] = (
        *(str, quote, partial(quote, safe=""), quote_plus, html.escape),
        *(lambda text: repr(text)[1:-1], lambda text: json.dumps(text)[1:-1]),
    )
    return {write(text) for text in plain_texts for write in writers} - {""}


def _decode(value: str) -> str:
    for _ in range(3):
        value = unquote_plus(value)
    return value


@cache
def _secrets() -> _Secrets:
    return _Secrets(os.environ)


def hide_address(address: str) -> str:
    """Lets `redact` hide user, password and query values of an address in all texts from now on; returns the address."""
    _secrets().add_address(address)
    return address


def public_address(address: str) -> str:
    """Returns an address without user, password and query."""
    return _USERINFO.sub("", address).partition("?")[0]


def redact(text: str) -> str:
    """Puts `***` in place of the user and password of every URI in `text`, of secrets in query strings, and of all that
    `hide_address` and the environment name."""
    text = _secrets().hide(text)
    if "://" in text:
        text = _USERINFO.sub("***@", text)
    if "=" in text:
        text = _SECRET_TEXT.sub(r"\1***", _QUERY.sub(_hide_value, text))
    return text


def _hide_value(match: re.Match[str]) -> str:
    name, value = match.groups()
    meant = _decode(value)
    names = [name, *(name for name, _ in _PAIR.findall(meant))]
    return f"{name}=***" if any(map(_SECRET_NAME.search, names)) or _USERINFO.search(meant) else match[0]


def redacted(value: Any) -> Any:
    """Redacts every string in the mappings and lists of plain data."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redacted(key): redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return value


def shorten(names: Sequence[str], most: int) -> list[str]:
    """Cuts names of more than `most` letters, with an ellipsis, where different ones stay different; others stay whole."""
    cut, order = [], sorted({*names})
    places = {name: place for place, name in enumerate(order)}
    for name in names:
        near = [order[place] for place in (places[name] - 1, places[name] + 1) if 0 <= place < len(order)]
        common = max((len(os.path.commonprefix([name, other])) for other in near), default=0)  # noqa: RUF071
        short, head = f"{name[: most - 1]}…", most // 3
        if len(name) <= most:
            short = name
        elif common > most - 3:
            start, room = max(head, common - 2), most - head - 1
            short = name[:head] + "…" + (name[-room:] if start + room >= len(name) else f"{name[start : start + room - 1]}…")
        cut.append(short)
    full: dict[str, set[str]] = {}
    for name, short in zip(names, cut, strict=True):
        full.setdefault(short, set()).add(name)
    return [short if len(full[short]) == 1 else name for name, short in zip(names, cut, strict=True)]


def printable(text: object) -> str:
    """Writes text on one line: line ends and whatever else is not seen become escapes."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in str(text))


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
    return "under 1 %" if probability < 0.005 else "over 99 %" if probability > 0.995 else f"{100 * probability:.0f} %"
