"""docs/sweep-file.md and docs/sweep-file.schema.json say what the code says, and the schema takes what `load_sweep` takes:
files that are drawn from it load, or a SweepError says why not."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import reduce
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest
import yaml

from craft.methods import METHODS
from docs.generate import SWEEP_SCHEMA, reports_schema
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.plain_yaml import read_yaml
from orchestrator.sweepfile.schema import sweep_schema
from orchestrator.sweepfile.space.blocks import parameter_names

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "sweeps").rglob("*.yaml"))
SCHEMA = sweep_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
SMALL: dict[str, Any] = {
    "name": "small",
    "model": "m",
    "tasks": ["toy/sentiment"],
    "space": [{"method": "craft", "ranks": ["all", 16, 16]}, {"method": "lora", "r": {"values": [1, 4]}}],
}


@pytest.mark.slow
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


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_shipped_sweep_names_the_schema_and_keeps_to_it(path: Path) -> None:
    first = path.read_text().partition("\n")[0]
    opening = "# yaml-language-server: $schema="
    assert first.startswith(opening)
    assert (path.parent / first.removeprefix(opening)).resolve() == ROOT / "docs" / SWEEP_SCHEMA
    VALIDATOR.validate(read_yaml(path).content)
    VALIDATOR.validate(yaml.safe_load(load_sweep(path).to_yaml()))  # the effective file, with every default written out


@pytest.mark.parametrize("method", METHODS)
def test_every_name_of_every_parameter_is_a_key_of_its_block(method: str) -> None:
    for name, canonical in parameter_names(METHODS[method]).items():
        block = {"method": method, name: {"values": [7]}}
        wrong = {error.json_path for error in VALIDATOR.iter_errors({**SMALL, "space": [block]})}
        assert wrong <= {f"$.space[0].{name}"}, canonical  # the key is known, though 7 may not be a value of it


@pytest.mark.parametrize(("schema", "unsaid"), [(SCHEMA, "method"), (reports_schema(), "")], ids=["sweep files", "reports"])
def test_every_key_has_a_meaning(schema: dict[str, Any], unsaid: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    parts = {"": schema, **schema["$defs"]}
    without = [
        f"{name}.{key}"
        for name, part in parts.items()
        for key, one in part.get("properties", {}).items()
        if not one.get("description") and "SearchedTraining" not in str(one) and key != unsaid
    ]
    assert without == []


TEXTS = [
    "",
    "a",
    "..",
    "/",
    "~",
    "~nobody/x",
    "é",
    "\u2028",
    "1e3",
    "null",
    "x: y",
    "{",
    "$HOME",
    "\x07",
    "\x00",
    "\ud7ff",
    "%s",
]
BY_PATTERN = {"custom/": ["custom/a"], r"^\s*": ["1 h", "2GiB", "0s", " 3 min", "9" * 400 + " h"], "^[A": ["a", "A.b-c_d", "0"]}
NUMBERS = [0, 1, 2, 3, 0.5, -1, 7, 64, 1e-9, 1e9, 1e300, 10**30, -0.0, 5e-324]


def drawn(schema: Any, random: Random) -> Any:
    """A value that mostly keeps to `schema`: its least and greatest ones more often than those between."""
    if schema is True:
        return random.choice([*TEXTS, *NUMBERS, None, True, [], {}])
    if "$ref" in schema:
        path = schema["$ref"].removeprefix("#/").split("/")
        return drawn(reduce(lambda part, key: part[key], path, SCHEMA), random)
    for key in ("anyOf", "enum"):
        if key in schema:
            chosen = random.choice(schema[key])
            return drawn(chosen, random) if key == "anyOf" else chosen
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type", "object")
    if kind == "object":
        return mapping(schema, random)
    if kind == "array":
        if "prefixItems" in schema:
            return [drawn(part, random) for part in schema["prefixItems"]]
        least = schema.get("minItems", 0)
        return [
            drawn(schema.get("items", True), random)
            for _ in range(min(schema.get("maxItems", 9), least + random.choice([0, 0, 1, 2])))
        ]
    if kind == "string":
        patterns = [texts for part, texts in BY_PATTERN.items() if part in schema.get("pattern", "")]
        return random.choice(patterns[0] if patterns else ["2026-02-29", "2026-11-25"] if "format" in schema else TEXTS)
    if kind in ("integer", "number"):
        low, high = (schema.get(side, schema.get(f"exclusive{side.capitalize()}")) for side in ("minimum", "maximum"))
        ends = [end + step for end, step in ((low, 0), (low, 1), (high, 0), (high, -1)) if end is not None]
        value = random.choice([*ends, *NUMBERS])
        inside = min(max(value, -math.inf if low is None else low), math.inf if high is None else high)
        return int(inside) if kind == "integer" else inside
    return {"boolean": random.random() < 0.5, "null": None}[kind]


def mapping(schema: Any, random: Random) -> dict[str, Any]:
    """A mapping of the keys that are required and a few more; what `if` and `then` ask of it is drawn after the rest."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    value = {key: drawn(part, random) for key, part in properties.items() if key in required or random.random() < 0.15}
    for case in schema.get("allOf", []):
        if jsonschema.Draft202012Validator(case["if"]).is_valid(value) and "$ref" in case["then"]:
            value = {**drawn(case["then"], random), **value}
    if "propertyNames" in schema or isinstance(schema.get("additionalProperties"), dict):
        names = [drawn({"type": "string", **schema.get("propertyNames", {})}, random) for _ in range(random.randint(1, 2))]
        value |= {name: drawn(schema.get("additionalProperties", True), random) for name in names if name not in value}
    return value


@pytest.mark.parametrize("seed", range(4))
def test_a_drawn_file_loads_or_is_refused_in_words(seed: int, here: Path) -> None:
    random, file, refusals, stray, kept = Random(seed), here / "sweep.yaml", [], [], 0
    for number in range(60):
        content = drawn(SCHEMA, random)
        if number % 2:  # a good file with two sections from the drawn one: it gets as far as the checks of sections together
            content = SMALL | {key: content[key] for key in random.sample(list(content), 2)}
        file.write_text(json.dumps(content))
        valid = VALIDATOR.is_valid(content)
        kept += valid
        try:
            load_sweep(file)
            stray += [] if valid else [content]
        except SweepError as error:
            refusals.append(str(error))
    assert stray == []
    assert all("sweep.yaml:" in refusal for refusal in refusals)
    assert kept > 12
    assert len(refusals) < 58
