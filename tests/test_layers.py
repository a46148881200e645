"""The three packages depend on each other one way, their folders too, nothing in circles; each outside system has one owner."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from craft import TUNERS
from craft.methods import METHODS
from craft.methods.by_peft_name import OWN_TARGETS, WHOLE

ROOT = Path(__file__).parent.parent
PACKAGES = ("craft", "orchestrator", "dashboards")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
NAMES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}

FORBIDDEN = {
    "craft": {"orchestrator", "dashboards", "ray", "mlflow", "optuna"},
    "orchestrator": {"dashboards"},
    "dashboards": {"torch", "ray", "transformers", "peft"},
}
OWNERS = {
    "ray": ("orchestrator/tune/",),
    "mlflow": ("orchestrator/tracking/", "dashboards/store.py"),
    "optuna": ("orchestrator/search/", "dashboards/panels/mattered.py"),
}

# From low to high. A module imports from its own package and from lower layers only.
LAYERS = {
    "craft": (
        ("craft.watch",),
        ("craft.disk", "craft.ranks", "craft.results", "craft.settings", "craft.words"),
        ("craft.processes",),
        ("craft.factors", "craft.tasks"),
        ("craft.models",),
        ("craft.tuners",),
        ("craft.methods",),
        ("craft.spec",),
        ("craft.scoring",),
        ("craft.trainer",),
        ("craft.audit",),
        ("craft",),
    ),
    "orchestrator": (
        ("orchestrator.tools",),  # with `sweepfile` the lowest layer: a mistake in a file hides passwords
        ("orchestrator.sweepfile",),
        ("orchestrator.plan",),
        ("orchestrator.record",),
        ("orchestrator.results", "orchestrator.tracking", "orchestrator.worker"),
        ("orchestrator.review", "orchestrator.search"),
        ("orchestrator.adapters", "orchestrator.driver", "orchestrator.suggest"),
        ("orchestrator.tune",),
        ("orchestrator.commands",),
        ("orchestrator",),
    ),
}


@cache
def imported(path: Path) -> list[str]:
    """Dotted names of what a module imports, anywhere in it; `a.b` for `from a import b` where that is a module."""
    return [*imported_by(ast.parse(path.read_text()))]


def imported_by(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                yield f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in NAMES else node.module


def layer_of(module: str) -> tuple[int, str]:
    """The number of a module's layer, and its package there: the longest name in LAYERS that begins the module's."""
    rows = LAYERS[module.split(".")[0]]
    packages = [(number, name) for number, row in enumerate(rows) for name in row if f"{module}.".startswith(f"{name}.")]
    return max(packages, key=lambda place: len(place[1]))


def test_imports_point_one_way() -> None:
    for path in MODULES:
        name = str(path.relative_to(ROOT))
        found = {one.split(".")[0] for one in imported(path)}
        assert not found & FORBIDDEN[name.split("/")[0]], name
        for system, owners in OWNERS.items():
            if system in found:
                assert name.startswith(owners), f"{name} imports {system}, which belongs to {sorted(owners)}"


def test_no_import_runs_back() -> None:
    for name in [name for name in NAMES if name.split(".")[0] in LAYERS]:
        number, package = layer_of(name)
        for other in imported(NAMES[name]):
            if other.split(".")[0] != name.split(".")[0] or "craft" in (name, other):
                continue  # `craft` itself holds the version, and public names that are loaded on first use
            below, other_package = layer_of(other)
            assert other_package == package or below < number, f"{name} imports {other}, which stands above or beside it"


def test_no_circle() -> None:
    edges = {name: {one for one in imported(path) if one in NAMES and one != name} for name, path in NAMES.items()}
    edges["craft"] = set()  # its public names are loaded on first use; the imports there are for type checkers
    TopologicalSorter(edges).prepare()  # a CycleError names the modules of a circle


def test_no_module_is_half_imported_while_the_tuners_are_registered() -> None:
    """Whatever imports PEFT first registers them at that line. What they import, but their own folder, has no such line."""
    reached, waiting = set[str](), {place for place, *_ in TUNERS.values()}
    while waiting:
        name = waiting.pop()
        reached.add(name)
        tree = ast.parse(NAMES[name].read_text())
        tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = set(imported_by(tree))
        assert name.startswith("craft.tuners") or not {other.split(".")[0] for other in names} & {"peft"}, name
        waiting |= (names & NAMES.keys()) - reached


def test_plan_and_search_name_no_method() -> None:
    """What is special about a method is a fact of its row: code that names it holds for no method of a plugin."""
    names = {*METHODS, *OWN_TARGETS, *WHOLE} - {"head"} | {row.title for row in METHODS.values()}  # a model has a `head`, too
    for path in (path for package in ("plan", "search") for path in (ROOT / "orchestrator" / package).glob("*.py")):
        texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not texts & names, path.name


def test_dashboards_read_and_judge_recorded_sweeps_alone() -> None:
    parts = {
        "review": ("comparing", "front_tables", "past_sweep", "progress", "run_columns", "run_table"),
        "record": ("events", "log", "state"),
        "plan": ("configuration", "trial"),
        "tracking": ("reader", "desired", "client"),
        "tools": ("markup", "secrets"),
    }
    readable = ["results", "sweepfile", *(f"{package}.{part}" for package, names in parts.items() for part in names)]
    for path in (ROOT / "dashboards").rglob("*.py"):
        for other in imported(path):
            if other.split(".")[0] == "orchestrator":
                allowed = other.startswith(tuple(f"orchestrator.{name}" for name in readable))
                assert allowed, f"{path.relative_to(ROOT)} imports {other}"
