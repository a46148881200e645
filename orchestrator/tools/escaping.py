"""Names and messages as text in Markdown: whatever a sweep file or an error holds, no page makes markup, a link or a picture of
it. A description in MLflow and a model card are both shown as HTML, where a picture's address would even be fetched."""

from __future__ import annotations

MARKUP = "\\`*_[]|#!~"


def plain(words: object) -> str:
    """Text on one line that Markdown and HTML show as it is."""
    line = " ".join(str(words).split())
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        line = line.replace(sign, safe)
    return "".join(f"\\{sign}" if sign in MARKUP else sign for sign in line)


def paragraphs(words: str) -> str:
    """The same for a text of several lines, a paragraph each."""
    return "\n\n".join(plain(line) for line in words.splitlines() if line.strip())
