"""The page docs/sweep-file.md: the schema of a sweep file as tables, for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from craft.methods import METHODS
from craft.tasks import SUITES
from orchestrator.sweepfile.algorithms import SCHEDULERS, SEARCHERS
from orchestrator.sweepfile.checks.tasks import metric_names
from orchestrator.sweepfile.schema import REF, Schema, own_parameters, parameter_blocks, second_keys
from orchestrator.sweepfile.space.blocks import OWN_KEYS
from orchestrator.sweepfile.space.reading import DISTRIBUTIONS, MAX_VALUES
from orchestrator.sweepfile.sweep import PLANNED_METRICS

SCHEMA_FILE = "sweep-file.schema.json"

INTRODUCTION = f"""\
# The sweep file

Every key, with its type, default, allowed values and meaning. `python -m orchestrator.sweepfile.reference` writes this page and
[{SCHEMA_FILE}]({SCHEMA_FILE}) from the code; edit neither by hand.

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
search: {{algorithm: tpe, trials: 24}}
scheduler: {{name: asha, grace: 1}}
constraints: {{trainable_parameters: {{max: 40000}}}}
```

With the first line, editors that speak the YAML language server (VS Code with the YAML extension, Neovim, Helix and others)
complete keys, show meanings and mark mistakes; give the path of the schema relative to your file. `python -m orchestrator.run
FILE --plan` checks more than a schema can: that sections fit together, that files exist, that the model takes the ranks.

Text, numbers, `true`, `false`, `null`, lists and mappings are all that a file may hold. `1e-4` is a number, `yes` is text.
`--set key.path=value` changes one value for one call, as in `--set training.epochs=1` or `--set space.0.rank=8`.
"""

SPACE = f"""\
Each item of `space` is a method block: a mapping with `method`, any of that method's parameters, any key of
[training](#training), and the keys below. A parameter or training setting in a block is a dimension. It is written in one of
three ways:

| written | meaning |
| --- | --- |
| `rank: 8` | one fixed value |
| `rank: {{values: [2, 8]}}` | one of the values, 1 to {MAX_VALUES} of them |
| `rank: {{min: 1, max: 16, distribution: int_log_uniform}}` | a number from `min` to `max`, both included; not with `grid` |

Keys of the type whole number take the two `int_` distributions, keys of the type number take all four, and other keys take no
range. The default is `int_uniform` if `min` and `max` are whole numbers, `uniform` otherwise.
"""


WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "object": "mapping"}
BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
COUNTS = {"Items": "items", "Length": "characters", "Properties": "keys"}


def page(schema: Schema) -> str:
    """The Markdown page of the sweep file's `schema`."""
    sections = dict(_sections(schema, schema))
    links = {name: f"[section](#{_anchor(heading)})" for heading, name in sections.items()}
    links |= {"Task": "[task](#tasks-and-metrics)", "TaskOrSuite": "[task or suite](#tasks-and-metrics)"}
    links["Block"] = "[method block](#space)"
    more = {"search": _searchers(), "scheduler": _schedulers()}
    parts = [INTRODUCTION, "## Top level\n", _keys(schema["properties"], schema["required"], links)]
    parts += ["## `space`\n", SPACE, _table(("`distribution`", "meaning"), _named(DISTRIBUTIONS))]
    parts.append(_table(("further key of a block", "meaning"), _named(OWN_KEYS)))
    for heading, name in sections.items():
        part = schema["$defs"][name]
        parts += [f"## `{heading}`\n", part["description"] + "\n"]
        parts += [_keys(part["properties"], part.get("required", []), links), *more.get(heading, [])]
    parts += ["## Tasks and metrics\n", *_tasks_and_metrics(), "## Methods\n", *_methods(links)]
    return "\n".join(parts)


def _sections(schema: Schema, part: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    """Paths of the sections inside `part`, each with the name of its definition; `NAME` stands for keys that users choose."""
    for key, one in part["properties"].items():
        for inner, end in ((one, ""), *((form, "") for form in one.get("anyOf", [])), (_values(one), ".NAME")):
            name = _target(inner)
            if "properties" in schema["$defs"].get(name, {}) and not (name == "TrainingSettings" and key != "training"):
                yield f"{path}{key}{end}", name
                yield from _sections(schema, schema["$defs"][name], f"{path}{key}{end}.")


def _values(schema: Schema) -> Schema:
    """The schema of the values of a mapping whose keys users choose; empty for anything else."""
    inner = schema.get("additionalProperties")
    return inner if isinstance(inner, dict) else {}


def _target(schema: Schema) -> str:
    """Name of the definition that a schema refers to, or an empty text."""
    return str(schema.get("$ref", "")).removeprefix(REF)


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "", heading.lower())


def _keys(properties: dict[str, Schema], required: Sequence[str], links: dict[str, str]) -> str:
    """The table of a section's keys; a second name of a key stands beside it."""
    second: dict[str, list[str]] = {}
    for key, one in properties.items():
        if "/properties/" in _target(one):
            second.setdefault(_target(one).rpartition("/")[2], []).append(key)
    rows = []
    for key, one in properties.items():
        if "/properties/" not in _target(one):
            names = _words((key, *second.get(key, [])))
            default = "required" if key in required else _default(one)
            rows.append((names, _type(one, links), default, _allowed(one), one.get("description", "")))
    return _table(("key", "type", "default", "allowed", "meaning"), rows)


def _default(schema: Schema) -> str:
    if "default" not in schema:
        return ""
    value = schema["default"]
    return "none" if value is None else f"`{_yaml(value)}`"


def _yaml(value: Any) -> str:
    """`value` as YAML on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_yaml(one)}' for key, one in value.items())}}}"
    return value if isinstance(value, str) else json.dumps(value)


def _forms(schema: Schema) -> list[Schema]:
    """The alternatives of a schema, without null."""
    return [form for form in schema.get("anyOf", [schema]) if form.get("type") != "null"]


def _type(schema: Schema, links: dict[str, str]) -> str:
    return " or ".join(dict.fromkeys(_one_type(form, links) for form in _forms(schema)))


def _one_type(form: Schema, links: dict[str, str]) -> str:
    if _target(form):
        return links[_target(form)]
    if "const" in form:
        return f"`{form['const']}`"
    if form["type"] == "array":
        items = form.get("prefixItems")
        return f"list of {len(items)}: {_type(items[0], links)}" if items else f"list of: {_type(form['items'], links)}"
    values = _values(form)
    return f"mapping to: {_type(values, links)}" if values else WORDS[form["type"]]


def _allowed(schema: Schema) -> str:
    return " or ".join(dict.fromkeys(text for form in _forms(schema) if (text := _limits(form))))


def _limits(form: Schema) -> str:
    """The allowed values of one form: its words, the bounds of a number, the length of a list or text."""
    items, keys = form.get("items", {}), form.get("propertyNames", {})
    named = (("", form), ("", items), ("keys ", keys), ("values ", _values(form)))
    limits = [f"{what}{_words(one['enum'])}" for what, one in named if "enum" in one]
    for kind in (form, items):
        limits += [f"{sign} {kind[key]}" for key, sign in BOUNDS.items() if key in kind]
    for what, unit in COUNTS.items():
        low, high = form.get(f"min{what}"), form.get(f"max{what}")
        if high is not None and low != high:
            limits.append(f"{low} to {high} {unit}" if low else f"at most {high} {unit}")
        elif low is not None and high is None:
            limits.append(f"at least {low} {unit if low > 1 else unit[:-1]}")
    return "; ".join(limits)


def _searchers() -> list[str]:
    return [_table(("`algorithm`", "meaning"), _named({name: row.title for name, row in SEARCHERS.items()}))]


def _schedulers() -> list[str]:
    rows = ((f"`{name}`", row.title, _words(row.settings)) for name, row in SCHEDULERS.items())
    return [_table(("`name`", "rule", "its keys"), rows)]


def _tasks_and_metrics() -> list[str]:
    suites = [(f"`{suite}`", _words(tasks)) for suite, tasks in SUITES.items()]
    own = ("`custom`", "`custom/NAME` for every NAME in `data.custom`")
    metrics = [("`objectives`, `budget.target`", metric_names()), ("`constraints`", PLANNED_METRICS)]
    named = ((where, _words(names)) for where, names in metrics)
    return [_table(("suite", "its tasks"), [*suites, own]), _table(("section", "its metrics"), named)]


def _methods(links: dict[str, str]) -> list[str]:
    """A table for each set of parameters, under the methods that take them."""
    parts = []
    for model, names in parameter_blocks().items():
        parts.append(f"### {_words(names)}\n")
        for row in (METHODS[name] for name in names):
            needs = [*(["a CUDA GPU"] if row.requires == "cuda" else []), *row.packages]
            parts.append(f"- {row.title} ({row.reference})." + (f" Needs {' and '.join(needs)}." if needs else ""))
        own = own_parameters(model) | second_keys(model, "")
        parts.append(f"\n{_keys(own, [], links)}" if own else "\nNo parameters of its own.\n")
    return parts


def _named(meanings: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return ((f"`{name}`", meaning) for name, meaning in meanings.items())


def _words(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
