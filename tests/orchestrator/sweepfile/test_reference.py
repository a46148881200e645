"""docs/sweep-file.md and docs/sweep-file.schema.json say what the code says, and the schema takes what `load_sweep` takes."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from craft.methods import METHODS
from docs.generate import PAGE_FILE, SWEEP_SCHEMA
from orchestrator.sweepfile.load import check, load_sweep
from orchestrator.sweepfile.plain_yaml import read_yaml
from orchestrator.sweepfile.schema import sweep_schema
from orchestrator.sweepfile.space.blocks import parameter_names

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "sweeps").rglob("*.yaml"))
SCHEMA = sweep_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

GOOD: dict[str, Any] = {
    "name": "small",
    "model": "m",
    "tasks": ["toy/sentiment"],
    "training": {"epochs": 3},
    "space": [
        {"method": "craft", "ranks": {"values": [["all", 16, 16], ["all", 32, 32]]}},
        {"method": "lora", "r": {"min": 1, "max": 4}, "learning_rate": {"values": [1e-3, 3e-3]}},
    ],
    "search": {"algorithm": "random", "configurations": 4},
    "scheduler": {"name": "promotion", "factor": 2},
    "objectives": {"score": "maximize"},
    "constraints": {"trainable_parameters": {"max": 10_000}},
    "resources": {"memory": "2 GiB"},
}


def test_the_files_are_what_the_code_says_in_any_process() -> None:
    program = """
from docs.generate import files
print([path.name for path, text in files().items() if path.read_text(encoding="utf-8") != text])
"""
    for seed in ("1", "2"):  # nothing may depend on the order of sets
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        )
        assert (done.returncode, done.stderr, done.stdout) == (0, "", "[]\n"), "run python docs/generate.py"


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_shipped_sweep_names_the_schema_and_keeps_to_it(path: Path) -> None:
    first = path.read_text().partition("\n")[0]
    opening = "# yaml-language-server: $schema="
    assert first.startswith(opening)
    assert (path.parent / first.removeprefix(opening)).resolve() == ROOT / "docs" / SWEEP_SCHEMA
    VALIDATOR.validate(read_yaml(path).content)
    VALIDATOR.validate(yaml.safe_load(load_sweep(path).to_yaml()))  # the effective file, with every default written out


@pytest.mark.slow
def test_check_jsonschema_takes_every_shipped_sweep() -> None:
    pytest.importorskip("check_jsonschema", reason="pip install -e '.[check-jsonschema]'")
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(ROOT / "docs" / SWEEP_SCHEMA)]
    done = subprocess.run([*command, *map(str, SHIPPED)], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "ok -- validation done"), done.stdout


def test_the_example_of_the_page_is_a_sweep(tmp_path: Path) -> None:
    page = (ROOT / "docs" / PAGE_FILE).read_text()
    (tmp_path / "sweep.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    assert len(load_sweep(tmp_path / "sweep.yaml").blocks) == 2
    VALIDATOR.validate(read_yaml(tmp_path / "sweep.yaml").content)


@pytest.mark.parametrize("method", METHODS)
def test_every_name_of_every_parameter_is_a_key_of_its_block(method: str) -> None:
    for name, canonical in parameter_names(METHODS[method]).items():
        block = {"method": method, name: {"values": [7]}}
        wrong = {error.json_path for error in VALIDATOR.iter_errors({**GOOD, "space": [block]})}
        assert wrong <= {f"$.space[0].{name}"}, canonical  # the key is known, though 7 may not be a value of it


def test_every_key_has_a_meaning() -> None:
    parts = {"": SCHEMA, **SCHEMA["$defs"]}
    without = [
        f"{name}.{key}"
        for name, part in parts.items()
        for key, one in part.get("properties", {}).items()
        if not one.get("description") and "SearchedTraining" not in str(one) and key != "method"
    ]
    assert without == []


MISTAKES: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "unknown key": (("trainig",), {}),
    "unknown method": (("space", 0, "method"), "crafft"),
    "parameter of another method": (("space", 0, "rank"), 8),
    "unknown key of a range": (("space", 1, "r", "maximum"), 8),
    "key of no scheduler": (("scheduler", "rivals"), 2),
    "name that climbs": (("name",), "../small"),
    "custom task without a label": (("data",), {"custom": {"mine": {"train": "a.csv", "text": "t"}}}),
}


def test_a_good_file_is_taken() -> None:
    VALIDATOR.validate(GOOD)
    assert check(GOOD)[1] == []


@pytest.mark.parametrize("case", MISTAKES)
def test_the_schema_refuses_what_the_loader_refuses(case: str) -> None:
    path, value = MISTAKES[case]
    content = copy.deepcopy(GOOD)
    here: Any = content
    for part in path[:-1]:
        here = here[part]
    here[path[-1]] = value
    assert check(content)[1], "the loader takes this"
    assert not VALIDATOR.is_valid(content)
