"""Names and messages as plain text in Markdown: no page makes markup, links or pictures of them.

MLflow shows descriptions as HTML, and so do model hubs with model cards; a picture's address would even be fetched.
"""

from __future__ import annotations

MARKUP = "\\`*_[]|#!~"


def plain(words: object) -> str:
    """Text on one line that Markdown and HTML show as it is."""
    line = " ".join(str(words).split())
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        line = line.replace(sign, safe)
    return "".join(f"\\{sign}" if sign in MARKUP else sign for sign in line)


def paragraphs(words: str) -> str:
    """A text of several lines, each as a paragraph of plain text."""
    return "\n\n".join(plain(line) for line in words.splitlines() if line.strip())
