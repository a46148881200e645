"""The JSON Schema of sweep files, for editors: `craft-sweeps new --schema`, and docs/sweep-file.schema.json.

It comes from the models that check a sweep file. Pydantic describes the sections. This module adds what the models leave to
later checks: the method blocks of `space` with their values and ranges, the names of tasks and metrics, and second names of
keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from craft.methods import METHODS
from craft.settings import TrainingSettings
from craft.tasks import SUITES, TASKS
from orchestrator.sweepfile.mistakes import shown_names, spellings
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
    keys["space"]["items"] = _ref("Block")
    definitions["DataSettings"]["properties"]["custom"]["propertyNames"] = {"pattern": f"^{NAME.pattern}$"}
    definitions["MeasureSettings"]["properties"]["forgetting"]["anyOf"].insert(0, {"type": "boolean"})
    definitions["TrainingSettings"]["properties"] |= second_keys(TrainingSettings, "TrainingSettings")
    return {"$schema": DIALECT, "title": "A sweep file"} | schema | {"$defs": definitions}


def own_parameters(model: type[BaseModel]) -> dict[str, Schema]:
    properties: dict[str, Schema] = _without_titles(model.model_json_schema())["properties"]
    return properties


def _block_definitions() -> dict[str, Schema]:
    """Returns `Block`, which looks at `method`, the block of each parameter model, and the training settings as dimensions."""
    training = _without_titles(TrainingSettings.model_json_schema())["properties"]
    searched = {key: _searched(value) for key, value in training.items()} | second_keys(TrainingSettings, "SearchedTraining")
    definitions: dict[str, Schema] = {"SearchedTraining": {"properties": searched}}
    own, cases = own_parameters(OwnKeys), []
    own["task_training"] |= TRAINING_BY_TASK
    methods: dict[type[BaseModel], list[str]] = {}
    for name, row in METHODS.items():
        methods.setdefault(row.parameters, []).append(name)
    for model, names in methods.items():
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
