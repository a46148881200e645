"""Writes the pages of docs that the code says: docs/sweep-file.md, every key of a sweep file, with its schema for editors, and
docs/reports.schema.json, the JSON Schema of all reports.

    python docs/generate.py

The page has one line for each key, with the first sentence of its description; the rest, types and bounds are in the schema,
and in the message about a mistake.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from craft.methods import METHODS
from craft.tasks import SUITES
from orchestrator.adapters.taking import CutReport, TakeReport
from orchestrator.commands.adapters import AuditReport
from orchestrator.commands.app import ErrorReport
from orchestrator.commands.check import CheckReport
from orchestrator.driver.change import Change
from orchestrator.driver.request import RequestReport
from orchestrator.review.comparing import CompareReport
from orchestrator.review.front_report import FrontReport
from orchestrator.review.listing import ListReport, Removal
from orchestrator.review.progress import Progress
from orchestrator.review.prospect import PlanReport
from orchestrator.review.trials_file import ExportReport
from orchestrator.suggest.suggest import SuggestReport
from orchestrator.sweepfile.mistakes import flow
from orchestrator.sweepfile.schema import REF, Schema, own_parameters, second_keys, sweep_schema
from orchestrator.sweepfile.settings import METRICS, PLANNED_METRICS, SEARCHERS
from orchestrator.sweepfile.space.blocks import DISTRIBUTIONS, OwnKeys

DOCS = Path(__file__).parent
PAGE_FILE, SWEEP_SCHEMA, REPORTS_SCHEMA = "sweep-file.md", "sweep-file.schema.json", "reports.schema.json"

INTRODUCTION = f"""\
# The sweep file

```yaml
# yaml-language-server: $schema={SWEEP_SCHEMA}
name: example
model: sentence-transformers/all-MiniLM-L6-v2
tasks: [toy/sentiment]
seeds: [0, 1]
training: {{epochs: 3, head_learning_rate: 1e-3}}
space:
  - method: craft
    ranks: {{values: [[all, 16, 16], [all, 64, 64]]}}
    learning_rate: {{min: 3e-4, max: 2e-2, distribution: log_uniform}}
  - method: lora
    rank: {{min: 1, max: 16, distribution: int_log_uniform}}
search: {{algorithm: tpe, configurations: 24}}
```

Each item of `space` is a method block: `method`, parameters of that method, and keys of
[training](#training). A key is fixed (`rank: 8`), has values (`rank: {{values: [2, 8]}}`), or has a
range (`rank: {{min: 1, max: 16}}`, both included; not with `grid`). `1e-4` is a number, `yes` is text.
`--set training.epochs=1` or `--set space.0.rank=8` changes a value.

With the first line, an editor with a YAML language server completes keys and marks mistakes (the
path is relative to your file; `craft-sweeps new --schema` prints the schema). Defaults are in
parentheses.
"""


def write_page(schema: Schema) -> str:
    """Returns the Markdown page of the sweep file's `schema`."""
    sections = dict(_sections(schema, schema))
    keys = {key: value for key, value in schema["properties"].items() if key not in sections}
    parts = [
        INTRODUCTION,
        "## Top level\n",
        _keys({**schema, "properties": keys}),
        "## Method blocks\n",
        "Further keys:\n",
    ]
    parts += [
        _list((key, str(field.description)) for key, field in OwnKeys.model_fields.items()),
        "Distributions:\n",
        _list(DISTRIBUTIONS.items()),
    ]
    for heading, section in sections.items():
        parts += [f"## `{heading}`\n", _keys(section)]
    suites = {suite: _quote(tasks) for suite, tasks in SUITES.items()} | {
        "custom": "`custom/NAME` for every NAME in `data.custom`"
    }
    metrics = {"objectives": _quote(METRICS), "constraints": _quote(PLANNED_METRICS)}
    parts += ["## Tasks and metrics\n", "Suites:\n", _list(suites.items())]
    parts += ["Metrics:\n", _list(metrics.items())]
    return "\n".join([*parts, "## Methods\n", "With arXiv numbers:\n", *_methods(), ""])


def _sections(schema: Schema, part: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yields the sections inside `part` by their paths; `NAME` means a key that users choose."""
    for key, value in part["properties"].items():
        named = value.get("additionalProperties")
        forms = [(form, "") for form in (value, *value.get("anyOf", []), *value.get("oneOf", []))]
        for form, end in [*forms, *[(named, ".NAME")] * isinstance(named, dict)]:
            inner = schema["$defs"].get(form.get("$ref", "").removeprefix(REF), {})
            if "properties" in inner and key != "task_training":
                yield f"{path}{key}{end}", inner
                yield from _sections(schema, inner, f"{path}{key}{end}.")


def _keys(section: Schema) -> str:
    """Returns the list of a section's keys; a second name of a key is in the same line."""
    required = section.get("required", [])
    lines = []
    for names, value in _named(section["properties"]):
        default = "required" if names[0] in required else _default(value)
        lines.append(_line(_quote(names), default, _meaning(value)))
    return "".join(lines)


def _named(properties: Mapping[str, Schema]) -> Iterator[tuple[list[str], Schema]]:
    """Yields each key with its further names, and its schema."""
    refs = {key: value.get("$ref", "") for key, value in properties.items()}
    second = {key: ref.rpartition("/")[2] for key, ref in refs.items() if "/properties/" in ref}
    for key, value in properties.items():
        if key not in second:
            yield [key, *(spelling for spelling, name in second.items() if name == key)], value


def _meaning(schema: Schema) -> str:
    """Returns the first sentence of the description, and the allowed words that it does not name."""
    meaning = re.split(r"(?<=\.) ", str(schema.get("description", "")), maxsplit=1)[0]
    options = [option for form in (schema, *schema.get("anyOf", [])) for option in form.get("enum", ())]
    unnamed = [option for option in options if f"`{option}`" not in meaning and option not in SEARCHERS]
    return f"{meaning} One of {_quote(options)}." if unnamed else meaning


def _default(schema: Schema) -> str:
    value = schema.get("default")
    return "" if value in (None, [], {}) else f"`{flow(value)}`"


def _methods() -> Iterator[str]:
    """Yields the methods, then their keys. Methods that share a key's meaning share its line, with the default of each."""
    takers: dict[tuple[str, str], dict[str, list[str]]] = {}
    spellings: dict[tuple[str, str], list[str]] = {}
    rows = []
    for name, method in METHODS.items():
        for names, value in _named(own_parameters(method.parameters) | second_keys(method.parameters, "")):
            key = names[0], _meaning(value)
            takers.setdefault(key, {}).setdefault(_default(value), []).append(name)
            spellings[key] = [spelling for spelling in spellings.get(key, names) if spelling in names]
        needs = [*(["a CUDA GPU"] if method.requires == "cuda" else []), *method.packages]
        paper = method.reference.rpartition(", ")[2].removeprefix("arXiv ")
        rows.append(f"`{name}` ({'; needs '.join([paper, ' and '.join(needs)] if needs else [paper])})")
    yield textwrap.fill(", ".join(rows), 100, break_on_hyphens=False) + "\n"
    yield 'Their keys, where "lora to vera" means all methods from the one to the other in this list:\n'
    for key, by_default in takers.items():
        methods = ", ".join(_join(names) + (f" ({default})" if default else "") for default, names in by_default.items())
        yield _line(f"{_quote(spellings[key])} of {methods}", "", key[1]).rstrip("\n")


def _join(methods: Sequence[str]) -> str:
    """Returns the names, or those of all others if these are fewer, or the first and the last of a row of METHODS."""
    order = [*METHODS]
    if len(others := [name for name in order if name not in methods]) < len(methods):
        return f"all but {', '.join(others)}"
    first, last = order.index(methods[0]), order.index(methods[-1])
    return f"{methods[0]} to {methods[-1]}" if 3 < len(methods) == last - first + 1 else ", ".join(methods)


def _quote(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _list(rows: Iterable[tuple[str, str]]) -> str:
    return "".join(_line(f"`{name}`", "", meaning) for name, meaning in rows)


def _line(name: str, default: str, meaning: str) -> str:
    line = f"- {name}{f' ({default})' if default else ''}: {meaning}"
    return textwrap.fill(line, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + "\n"


AnyReport = Annotated[
    PlanReport
    | CheckReport
    | Change
    | RequestReport
    | Progress
    | ListReport
    | Removal
    | FrontReport
    | CompareReport
    | TakeReport
    | SuggestReport
    | ExportReport
    | CutReport
    | AuditReport
    | ErrorReport,
    Field(discriminator="report"),
]


def reports_schema() -> dict[str, Any]:
    """Returns the schema; the field `report` says which of its parts holds."""
    schema = TypeAdapter(AnyReport).json_schema(mode="serialization")
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Reports of CRAFT sweeps",
        "description": "What commands print with --json.",
    }
    return head | _on_one_line(schema)


def _on_one_line(schema: Any) -> Any:
    """Returns a schema whose descriptions, written as docstrings, have no line breaks."""
    if isinstance(schema, dict):
        return {name: _on_one_line(value) for name, value in schema.items()}
    if isinstance(schema, list):
        return [_on_one_line(value) for value in schema]
    return " ".join(schema.split()) if isinstance(schema, str) and "\n" in schema else schema


def files() -> dict[Path, str]:
    """Returns the texts of the files by their paths."""
    schema = sweep_schema()
    texts = {PAGE_FILE: write_page(schema), SWEEP_SCHEMA: json_text(schema, lines=2) + "\n"}
    texts[REPORTS_SCHEMA] = json_text(reports_schema(), lines=4) + "\n"
    return {DOCS / name: text for name, text in texts.items()}


def json_text(value: Any, lines: int) -> str:
    """Returns `value` as JSON, with a line for each key of so many levels."""
    if not lines or not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json_text(item, lines - 1)}" for key, item in value.items()) + "\n}"


def main() -> None:
    """Writes the files."""
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
