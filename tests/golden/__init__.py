"""Golden files hold what renderers write, to the letter. `UPDATE_GOLDEN=1 pytest ...` writes them; read the difference."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent


def check_golden(name: str, text: str) -> None:
    """Compares `text` with the golden file `name`, or writes the file where UPDATE_GOLDEN is set."""
    path = FOLDER / name
    text = "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").splitlines()) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    expected = path.read_text(encoding="utf-8")
    assert text == expected, f"{path} differs; if the change is meant, run pytest with UPDATE_GOLDEN=1 and read the difference"
