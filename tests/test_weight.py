"""The product stays light: limits for modules, functions and packages, which only fall.

A change that makes a package smaller lowers its limit; one that makes it larger says in its commit what that buys.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LINES = {"craft": 15926, "orchestrator": 25461, "dashboards": 2901}
"""The most lines of each package."""

MODULE, FUNCTION = 300, 45
"""The most lines of a module, and of code in a function: without its signature, docstring, comments and empty lines."""

LONGER_FUNCTIONS = {
    "orchestrator/plan/table.py _print_configurations": 47,
}


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def count_code(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    body = function.body[ast.get_docstring(function) is not None :]
    code = lines[body[0].lineno - 1 : function.end_lineno] if body else []
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in code)


@pytest.mark.parametrize("package", LINES)
def test_a_package_does_not_grow(package: str) -> None:
    assert sum(map(count_lines, files(package))) <= LINES[package]


def test_modules_are_short() -> None:
    lengths = {str(path.relative_to(ROOT)): count_lines(path) for package in LINES for path in files(package)}
    assert {path: length for path, length in lengths.items() if length > MODULE} == {}


def test_functions_are_short() -> None:
    longer = {}
    for path in (path for package in LINES for path in files(package)):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = count_code(node, source.splitlines())
                name = f"{path.relative_to(ROOT)} {node.name}"
                if length > LONGER_FUNCTIONS.get(name, FUNCTION):
                    longer[name] = length
    assert longer == {}
