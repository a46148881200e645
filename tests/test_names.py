"""Names and docstrings say what they name: no variable has an empty name, and a function's docstring begins with a verb."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from orchestrator.commands import app
from tests.test_documents import ROOT

EMPTY = frozenset(["one", "found", "given", "made", "what", "known", "content", "whole", "others", "words", "there", "kept",
                   "shown", "taken", "rest", "asked", "before", "own", "left", "now"])  # fmt: skip
"""Names that fit any value."""

ALLOWED = {"craft": 0, "orchestrator": 1, "dashboards": 0}
"""How many variables and arguments of a package still have an empty name: a field of the log. Lower it when you rename one."""

NOUNS = (
    "Args|Columns|Configurations|Lines|Mappings|(Names|Notes|Numbers) (of|for)|Positions|Prompts|Seconds|Sizes|Trainings|Trials"
)
VERB = re.compile(rf"(?!This|Its|Always|As\b|Nothing|{NOUNS})[A-Z][a-z]+s\b")
"""The third person of a verb: `Returns`, `Checks`; no plural of a noun."""

COMMANDS = {row.function.partition(":")[2] for row in app.COMMANDS}
"""Functions whose docstring is the help of a command: it begins with the verb that the command is."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(package: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def empty_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        name = node.id if stored else node.arg if isinstance(node, ast.arg) else ""  # type: ignore[attr-defined]
        if name in EMPTY:
            yield f"{getattr(node, 'lineno', 0)}: {name}"


def is_property(function: Function) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def first_words(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields each function but properties and operators, with the first two words of its docstring."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and not node.name.startswith("__") and not is_property(node):
            docstring = ast.get_docstring(node)
            if docstring:
                yield f"{node.lineno}: {node.name}", " ".join(docstring.split()[:2])


@pytest.mark.parametrize("package", ALLOWED)
def test_names_say_what_they_name(package: str) -> None:
    names = [f"{path}:{name}" for path, tree in modules(package) for name in empty_names(tree)]
    assert len(names) <= ALLOWED[package], "\n".join(names)


@pytest.mark.parametrize("package", ALLOWED)
def test_docstrings_of_functions_begin_with_a_verb(package: str) -> None:
    wrong = [
        f"{path}:{function}: {word}"
        for path, tree in modules(package)
        for function, word in first_words(tree)
        if not VERB.match(word) and not (function.split(": ")[1] in COMMANDS and "command" in path)
    ]
    assert wrong == [], "\n".join(wrong)


def test_the_rule_sees_verbs_and_other_words() -> None:
    assert all(VERB.match(word) for word in ("Returns", "Checks", "Yields"))
    assert not any(
        VERB.match(word)
        for word in ("The", "This", "A", "Whether", "Of", "What", "Nothing:", "`path`", "Numbers of", "Trials by")
    )


def test_the_rule_sees_empty_names() -> None:
    assert [*empty_names(ast.parse("def f(one, trial):\n    what = [found for found in trial]\n"))] == [
        "1: one",
        "2: what",
        "2: found",
    ]
