"""Secrets that no text may show: `redact` hides user, password and query of each address, and what the environment names."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

_END = r"[\s,;:)}\]]|$"
_PORT = rf"\d{{1,5}}(?:[\"'<>]?(?:{_END})|[/?#])"
_USERINFO = re.compile(
    rf"(?<=://)(?!/)(?:[^\s/:]*:(?!{_PORT})(?:(?!://)[^\n])*|[^\s/:]*:[^\s\"'<>]*"
    rf"|(?<!abfs://)(?<!abfss://)(?:[^\s/:\"'<>]|[\"'<>](?!{_END}))*)@"
)
"""A user with or without a password, which may hold any sign. An "@" further on, in a path or a bucket, is part of a name;
so is one behind the container of an Azure address that has no password."""
_QUERY = re.compile(rf"(?<=[?&;])([\w.%\[\]-]+)=((?:[^&\s\"'<>]|[\"'<>](?!{_END}))*)")
_OF_A_SERVER = ("endpoint_override", "region", "scheme")
"""What a storage URI says of its server, which is no secret."""
_PAIR = re.compile(r"(?:^|[;&?\s])\s*([\w.-]+) ?= ?(\{[^}]*\}|[^;&\s]*)")
_SECRET_NAME = re.compile(
    # A view on MLflow's page has a key, which opens nothing else.
    r"(?i)(?:(?<!viewStateShare)key|token|secret|pwd|sig|signature|auth|pass|passwd|password|passphrase|credentials?)$"
)
_SECRET_TEXT = re.compile(
    r"(?i)((?:^|[\s,;(])[\w.-]*(?:password|passwd|pwd|secret|access_key|account_key|api_key|(?<![\w.-])token)=)[^&;\s\"']+"
)
"""A password in a text that is no address, as in the settings of a database's driver."""


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
        pairs = [pair.partition("=")[::2] for pair in query.split("&")] if mark else []
        for name, value in pairs:
            plain = _is_word(value) or unquote(value).startswith("/") or name in _OF_A_SERVER
            if _SECRET_NAME.search(name) or not plain:
                self._add(value)
            self._add_nested(value)
        public = "&".join(f"{name}={value if name in _OF_A_SERVER else '***'}" for name, value in pairs)
        self._addresses[address] = f"{scheme}://{'***@' if userinfo else ''}{place}{mark}{public}"
        self._compile()

    def hide(self, text: str) -> str:
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
