"""Writes docs/sweep-file.md, every key of a sweep file, and docs/sweep-file.schema.json, its schema for editors.

    python -m orchestrator.sweepfile.reference

Both come from the models that check a sweep file. Pydantic describes the sections. This module adds what the models leave to
later checks: the method blocks of `space` with their values and ranges, the names of tasks and metrics, the keys of each
scheduler, and second names of keys. The page has one line for each key, with the first sentence of its description; the rest,
types and bounds are in the schema, and in the message about a mistake.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from craft.methods import METHODS
from craft.settings import TrainingSettings
from craft.tasks import SUITES, TASKS
from orchestrator.sweepfile.algorithms import SCHEDULERS, SEARCHERS
from orchestrator.sweepfile.mistakes import flow, shown_names, spellings
from orchestrator.sweepfile.settings import METRICS, PLANNED_METRICS
from orchestrator.sweepfile.space.blocks import DISTRIBUTIONS, MAX_VALUES, TYPE, OwnKeys
from orchestrator.sweepfile.space.dimensions import CONFIG
from orchestrator.sweepfile.sweep import NAME, Sweep

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
CUSTOM_TASK = {"type": "string", "pattern": f"^custom/{NAME.pattern}$"}
ANY_TASK = {"anyOf": [{"enum": [*TASKS]}, CUSTOM_TASK]}
REF = "#/$defs/"
TRAINING_BY_TASK = {
    "type": "object",
    "propertyNames": {"$ref": f"{REF}TaskOrSuite"},
    "additionalProperties": {"$ref": f"{REF}TrainingSettings"},
}
UNSEARCHED = (TYPE, CONFIG)
"""Keys of a block that take no `values` and no range themselves; the keys inside `config` do."""
ANY_TASK_OR_SUITE = {"anyOf": [{"enum": [*SUITES, "custom", *TASKS]}, CUSTOM_TASK]}


def sweep_schema() -> Schema:
    """Returns the schema of a sweep file (draft 2020-12)."""
    schema = _without_titles(Sweep.model_json_schema())
    definitions, keys = schema.pop("$defs"), schema["properties"]
    definitions |= {"Task": ANY_TASK, "TaskOrSuite": ANY_TASK_OR_SUITE, **_block_definitions()}
    for section in (*keys.values(), *definitions["DataSettings"]["properties"].values()):
        if "$ref" in section:  # pydantic leaves the description with the class
            section.setdefault("description", definitions[section["$ref"].removeprefix(REF)]["description"])
    keys["tasks"]["items"] = _ref("TaskOrSuite")
    keys["task_training"] |= TRAINING_BY_TASK
    keys["warm_start"] |= {"propertyNames": _ref("Task"), "additionalProperties": _ref("Task")}
    keys["objectives"]["propertyNames"] = {"enum": list(METRICS)}
    keys["constraints"]["propertyNames"] = {"enum": list(PLANNED_METRICS)}
    keys["space"]["items"] = _ref("Block")
    definitions["DataSettings"]["properties"]["custom"]["propertyNames"] = {"pattern": f"^{NAME.pattern}$"}
    definitions["MeasureSettings"]["properties"]["forgetting"]["anyOf"].insert(0, {"type": "boolean"})
    definitions["SchedulerSettings"]["allOf"] = _scheduler_keys()
    definitions["TrainingSettings"]["properties"] |= second_keys(TrainingSettings, "TrainingSettings")
    return {"$schema": DIALECT, "title": "A sweep file"} | schema | {"$defs": definitions}


def parameter_blocks() -> dict[type[BaseModel], list[str]]:
    """Returns the methods by the model of their parameters, in the order of METHODS."""
    methods: dict[type[BaseModel], list[str]] = {}
    for name, row in METHODS.items():
        methods.setdefault(row.parameters, []).append(name)
    return methods


def own_parameters(model: type[BaseModel]) -> dict[str, Schema]:
    """Returns the schema of each parameter of a method, by its canonical name."""
    properties: dict[str, Schema] = _without_titles(model.model_json_schema())["properties"]
    return properties


def _block_definitions() -> dict[str, Schema]:
    """Returns `Block`, which looks at `method`, the block of each parameter model, and the training settings as dimensions."""
    training = _without_titles(TrainingSettings.model_json_schema())["properties"]
    searched = {key: _searched(value) for key, value in training.items()} | second_keys(TrainingSettings, "SearchedTraining")
    definitions: dict[str, Schema] = {"SearchedTraining": {"properties": searched}}
    own, cases = own_parameters(OwnKeys), []
    own["task_training"] |= TRAINING_BY_TASK
    for model, names in parameter_blocks().items():
        title = f"{model.__name__.removesuffix('Parameters')}Block"
        properties = {"method": {"enum": names}}
        properties |= {key: _ref(f"SearchedTraining/properties/{key}") for key in searched}
        parameters = own_parameters(model).items()
        properties |= {key: value if key in UNSEARCHED else _searched(value) for key, value in parameters}
        properties |= second_keys(model, title)
        properties |= own
        definitions[title] = {"type": "object", "properties": properties, "additionalProperties": False}
        chosen = {"properties": {"method": {"enum": names}}, "required": ["method"]}
        cases.append({"if": chosen, "then": _ref(title)})
    method = {"description": "The method; it decides which keys the block has.", "enum": list(METHODS)}
    block = {"type": "object", "required": ["method"], "properties": {"method": method}, "allOf": cases}
    return {"Block": block} | definitions


def _searched(value: Schema) -> Schema:
    """Returns the schema of a dimension: a fixed value, `values`, or a range if the value can be a number."""
    about = {key: value[key] for key in ("description", "default") if key in value}
    forms = value.get("anyOf") or [{key: part for key, part in value.items() if key not in about}]
    item = forms[0] if len(forms) == 1 else {"anyOf": forms}
    values = {"type": "array", "items": item, "minItems": 1, "maxItems": MAX_VALUES}
    searched = [*forms, _mapping({"values": values}, ["values"])]
    number = next((form for form in forms if form.get("type") in ("integer", "number")), None)
    if number:
        allowed = [name for name in DISTRIBUTIONS if number["type"] == "number" or name.startswith("int_")]
        searched.append(_mapping({"min": number, "max": number, "distribution": {"enum": allowed}}, ["min", "max"]))
    return about | {"anyOf": searched}


def _mapping(properties: Mapping[str, Schema], required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _scheduler_keys() -> list[Schema]:
    return [
        {
            "if": {"properties": {"name": {"const": name}}} | ({} if name == "none" else {"required": ["name"]}),
            "then": {"propertyNames": {"enum": ["name", *row.settings]}},
        }
        for name, row in SCHEDULERS.items()
    ]


def second_keys(model: type[BaseModel], place: str) -> dict[str, Schema]:
    """Returns the further names of the model's fields (`r` for `rank`), each with the schema that its field has at `place`."""
    names = spellings(model)
    spelling_of = {names[spelling]: spelling for spelling in shown_names(model)}
    return {
        spelling: _ref(f"{place}/properties/{spelling_of[name]}") | {"description": f"Another name of `{spelling_of[name]}`."}
        for spelling, name in names.items()
        if spelling != spelling_of[name]
    }


def _ref(name: str) -> Schema:
    return {"$ref": REF + name}


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_titles(part) for key, part in schema.items() if key != "title" or not isinstance(part, str)}
    return [_without_titles(part) for part in schema] if isinstance(schema, list) else schema


DOCS = Path(__file__).parents[2] / "docs"
PAGE_FILE, SCHEMA_FILE = "sweep-file.md", "sweep-file.schema.json"

INTRODUCTION = f"""\
# The sweep file

```yaml
# yaml-language-server: $schema={SCHEMA_FILE}
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
scheduler: {{name: promotion, grace: 1}}
constraints: {{trainable_parameters: {{max: 40000}}}}
```

Each item of `space` is a method block: `method`, parameters of that method, and keys of
[training](#training). A key is fixed (`rank: 8`), has values (`rank: {{values: [2, 8]}}`), or has a
range (`rank: {{min: 1, max: 16}}`, both included; not with `grid`). `1e-4` is a number, `yes` is text.
`--set training.epochs=1` or `--set space.0.rank=8` changes a value for the whole sweep.

With the first line, an editor with a YAML language server completes keys and marks mistakes (the
path is relative to your file; `craft-sweeps new --schema` prints the schema). Below, each key has
its default in parentheses. [{SCHEMA_FILE}]({SCHEMA_FILE}) has more.
"""


def write_page(schema: Schema) -> str:
    """Returns the Markdown page of the sweep file's `schema`."""
    sections = dict(_sections(schema, schema))
    keys = {key: value for key, value in schema["properties"].items() if key not in sections}
    parts = [
        INTRODUCTION,
        "## Top level\n",
        "Besides the sections below:\n",
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
    return "\n".join([*parts, "## Methods\n", "With the arXiv numbers of their papers:\n", *_methods(), ""])


def _sections(schema: Schema, part: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yields the sections inside `part` by their paths; `NAME` stands for keys that users choose."""
    for key, value in part["properties"].items():
        named = value.get("additionalProperties")
        forms = [(form, "") for form in (value, *value.get("anyOf", []))] + [(named, ".NAME")] * isinstance(named, dict)
        for form, end in forms:
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
    unnamed = [option for option in options if f"`{option}`" not in meaning and option not in {*SEARCHERS, *SCHEDULERS}]
    return f"{meaning} One of {_quote(options)}." if unnamed else meaning


def _default(schema: Schema) -> str:
    value = schema.get("default")
    return "" if value is None else f"`{flow(value)}`"


def _methods() -> Iterator[str]:
    """Yields the methods, then their keys. Methods that share a key's meaning share its line, with the default of each."""
    takers: dict[tuple[str, str], dict[str, list[str]]] = {}
    spellings: dict[tuple[str, str], list[str]] = {}
    rows = []
    for name, method in METHODS.items():
        for names, value in _named(own_parameters(method.parameters) | second_keys(method.parameters, "")):
            key = names[0], _meaning(value)
            takers.setdefault(key, {}).setdefault(_default(value), []).append(name)
            spellings.setdefault(key, []).extend(names)
        needs = [*(["a CUDA GPU"] if method.requires == "cuda" else []), *method.packages]
        paper = method.reference.rpartition(", ")[2].removeprefix("arXiv ")
        rows.append(f"`{name}` ({'; needs '.join([paper, ' and '.join(needs)] if needs else [paper])})")
    yield textwrap.fill(", ".join(rows), 100, break_on_hyphens=False) + "\n"
    yield "Their keys:\n"
    for key, by_default in takers.items():
        methods = ", ".join(_join(names) + (f" ({default})" if default else "") for default, names in by_default.items())
        yield _line(f"{_quote(dict.fromkeys(spellings[key]))} of {methods}", "", key[1]).rstrip("\n")


def _join(methods: Sequence[str]) -> str:
    """Returns the names, or the first and the last if all between them in the list of methods are among them."""
    order = [*METHODS]
    first, last = order.index(methods[0]), order.index(methods[-1])
    return f"{methods[0]} to {methods[-1]}" if 3 < len(methods) == last - first + 1 else ", ".join(methods)


def _quote(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _list(rows: Iterable[tuple[str, str]]) -> str:
    return "".join(_line(f"`{name}`", "", meaning) for name, meaning in rows)


def _line(name: str, default: str, meaning: str) -> str:
    line = f"- {name}{f' ({default})' if default else ''}: {meaning}"
    return textwrap.fill(line, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + "\n"


def files() -> dict[Path, str]:
    """Returns the texts of the two files by their paths."""
    schema = sweep_schema()
    return {DOCS / PAGE_FILE: write_page(schema), DOCS / SCHEMA_FILE: json_text(schema, lines=2) + "\n"}


def json_text(value: Any, lines: int) -> str:
    """Returns `value` as JSON, with a line for each key of so many levels."""
    if not lines or not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json_text(item, lines - 1)}" for key, item in value.items()) + "\n}"


def main() -> None:
    """Writes both files."""
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
