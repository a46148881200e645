"""Text for Markdown and HTML, which show it as it is; and long names cut where different ones stay different."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence

MARKUP = "\\`*_[]|#!~"


def plain(text: object) -> str:
    """Writes text on one line that Markdown and HTML show as it is, without markup, links or pictures: MLflow and model hubs
    show descriptions as HTML, and would fetch a picture's address."""
    line = html.escape(" ".join(str(text).split()), quote=False)
    return "".join(f"\\{sign}" if sign in MARKUP else sign for sign in line)


def paragraphs(text: str) -> str:
    """Writes a text of several lines, each as a paragraph of plain text."""
    return "\n\n".join(plain(line) for line in text.splitlines() if line.strip())


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
            start, rest = max(head, common - 2), most - head - 1
            short = name[:head] + "…" + (name[-rest:] if start + rest >= len(name) else f"{name[start : start + rest - 1]}…")
        cut.append(short)
    full: dict[str, set[str]] = {}
    for name, short in zip(names, cut, strict=True):
        full.setdefault(short, set()).add(name)
    return [short if len(full[short]) == 1 else name for name, short in zip(names, cut, strict=True)]
