"""The three packages depend on each other one way, and each outside system has one owner."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(path for package in ("craft", "orchestrator", "dashboards") for path in (ROOT / package).rglob("*.py"))

FORBIDDEN = {
    "craft": {"orchestrator", "dashboards", "ray", "mlflow", "optuna"},
    "orchestrator": {"dashboards"},
    "dashboards": {"torch", "ray", "transformers", "peft"},
}
OWNERS = {
    "ray": {f"orchestrator/{name}.py" for name in ("runner", "hooks", "nodes", "search", "team")},
    "mlflow": {
        "orchestrator/record/mlflow_writer.py",
        "orchestrator/record/mlflow_probe.py",
        "orchestrator/record/artifacts.py",
        "orchestrator/record/mlflow_reader.py",
        "orchestrator/record/registry.py",
        "dashboards/store.py",
    },
}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    found = set(imported(path))
    assert not found & FORBIDDEN[name.split("/")[0]]
    for system, owners in OWNERS.items():
        if system in found:
            assert name in owners, f"{name} imports {system}, which belongs to {sorted(owners)}"
