"""Text files that are no UTF-8: the line of the first wrong byte, and the encoding in which the file reads most like words."""

from __future__ import annotations

import codecs
from itertools import pairwise
from pathlib import Path

ENCODINGS = (
    *("cp1252", "mac_roman", "cp850", "cp1250", "cp1251", "koi8_r", "cp1253"),
    *("shift_jis", "euc_jp", "gb18030", "big5", "euc_kr"),
)
"""Encodings that a file which is no UTF-8 may have, the usual ones first."""
_USUAL = frozenset(
    "àáâãäåæçèéêëìíîïñòóôõöøùúûüýßœščžřěąćęłńśźżőű“”„‘’«»–—…€£§°¿¡"
    "оеаинтсрвлкмдпуяыьгзбчйхжшюцщэф" "αειοτνσρπκλμυηςάέίόύή"
    "的一是不了在人有我他这中大来上個个們们你说說到要去哪裡里谢謝"
)  # fmt: skip
"""Letters and marks of which texts in these encodings are mostly made."""


def describe_no_text(path: Path, encoding: str | None, may_name: bool) -> str:
    """Says on which line a text file has bytes that its encoding does not have, and which encoding is likelier. `may_name`:
    whether the encoding can be named instead."""
    data = path.read_bytes()
    if encoding is not None:
        likely = likely_encoding(data) if _undecodable(data, "utf-8-sig") is not None else "utf-8"
        advice = f"; {likely} is likelier" if likely and likely != encoding else ""
        return f"{path} cannot be read as {encoding}{advice}: give another encoding"
    at = _undecodable(data, "utf-8-sig") or 0
    line = data.count(b"\n", 0, at) + 1
    place, likely = f"{path}, line {line}: not UTF-8 text: byte 0x{data[at]:02x} cannot be read", likely_encoding(data)
    name = likely or "NAME"
    advice = "Save the file as UTF-8"
    advice += f"; or name the encoding: encoding: {name} next to train, suggest --encoding {name}" if may_name else ""
    if likely is None:
        return f"{place}. {advice}"
    if likely.startswith("utf-16"):
        lines = data.decode(likely, errors="replace").splitlines()
        text = lines[min(line, len(lines)) - 1].strip()
    else:
        begin, end = max(data.rfind(b"\n", 0, at) + 1, at - 20), data.find(b"\n", at)
        text = data[begin : len(data) if end < 0 else end].decode(likely, errors="replace").strip()
    return f"{place}. The encoding is likely {likely}, in which it reads {text[:60]!r}. {advice}"


def _undecodable(data: bytes, encoding: str) -> int | None:
    """Returns the place of the first byte that is no text in an encoding."""
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        return error.start
    return data.index(0) if "\0" in text else None


def likely_encoding(data: bytes) -> str | None:
    """Returns the encoding in which bytes that are no UTF-8 read most like words; None if they do in none."""
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    if data[:4096].count(0) > len(data[:4096]) // 5:
        return "utf-16-le" if data[1:4096:2].count(0) > data[0:4096:2].count(0) else "utf-16-be"
    lines = [line for line in data.splitlines() if not line.isascii()][:1000]
    scores = {encoding: _reads_like_words(b"\n".join(lines), encoding) for encoding in ENCODINGS}
    best = max(scores, key=lambda encoding: scores[encoding])
    return best if scores[best] > 0 else None


def _reads_like_words(data: bytes, encoding: str) -> float:
    """Returns how well the letters beyond ASCII fit into their words, from -1 to 1."""
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        return -1.0
    scores = []
    for before, letter in pairwise(f" {text}"):
        if letter.isascii():
            continue
        syllable = "\u3040" <= letter <= "\u30ff" or "\uac00" <= letter <= "\ud7a3"
        score = 1.0 if syllable or letter.lower() in _USUAL else 0.6
        first, second = sorted((before, letter))
        if "\u4e00" <= first <= "\u9fff" and "\uac00" <= second <= "\ud7a3":  # Chinese, read as Korean
            score = -0.5
        if letter.isalpha():
            in_ascii, latin = before.isascii() and before.isalpha(), letter < "\u0250"
            if (letter.isupper() and before.islower()) or (in_ascii and not latin):
                score = -0.5
            elif latin and before.isalpha() and not in_ascii:  # words of such letters alone are of another script
                score = 0.3
        elif letter not in _USUAL:
            score = -1.0
        scores.append(score)
    return sum(scores) / len(scores) if scores else -1.0
