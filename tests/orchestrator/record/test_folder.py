"""The names of a sweep's files are a format, and one module spells them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import orchestrator
from orchestrator.record import folder
from orchestrator.record.folder import FRONT_CSV, FRONT_HTML, FRONT_PNG, FRONT_TEX, SweepFolder

ROOT = Path(orchestrator.__file__).parent
NAMES = {
    "effective": "sweep.yaml",
    "record": "log.jsonl",
    "tracking": "tracking.json",
    "log": "sweep.log",
    "lock": ".lock",
    "driver": ".driver.json",
    "ray": "ray",
    "adapters": "adapters",
    "scratch": "scratch",
    "page": "front.html",
}
FRONT = ("front.csv", "front.tex", "front.png", "front.html")


def test_names_on_disk(tmp_path: Path) -> None:
    assert {name: getattr(SweepFolder(tmp_path), name) for name in NAMES} == {
        name: tmp_path / file for name, file in NAMES.items()
    }
    assert (FRONT_CSV, FRONT_TEX, FRONT_PNG, FRONT_HTML) == FRONT


def spelled(path: Path) -> Iterator[str]:
    """File names in a module's strings, docstrings aside, and folder names in its paths (`folder / "ray"`)."""
    tree = ast.parse(path.read_text())
    prose = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    files = [name for name in (*NAMES.values(), *FRONT) if "." in name[1:]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            yield from (name for name in files if name in node.value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
            yield from (name for name in NAMES.values() if name == node.right.value)


def test_no_other_module_spells_them() -> None:
    for path in sorted({*ROOT.rglob("*.py")} - {Path(folder.__file__)}):
        assert not set(spelled(path)), f"{path.relative_to(ROOT)}: take the name from SweepFolder"
