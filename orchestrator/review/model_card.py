"""The model card (README.md) of an adapter that is taken home: what it is, its scores, their protocol, and how to load it.

Model hubs read this form: YAML on top, Markdown below. Names of tasks, models and labels come from a sweep file, so the card
shows them as plain text, never as markup.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from craft.models.cached import base_name
from craft.models.gguf import is_gguf
from craft.results import MODEL_DIGEST
from craft.trainer.checkpoint import add_file
from craft.words import plain
from orchestrator.plan.parameters import flatten, text
from orchestrator.plan.trial import PlannedTrial
from orchestrator.results.chances import EXPECTED, P_ENOUGH, P_FRONT
from orchestrator.results.intervals import Interval
from orchestrator.results.metrics import COLUMNS, number
from orchestrator.results.summary import Entry, Summary, summarize_entries
from orchestrator.results.table import full_label
from orchestrator.review.elsewhere import peft_config, served_by
from orchestrator.review.merging import reads_pairs
from orchestrator.state.entry import TrialResult

CARD_FILE = "README.md"
PROTOCOLS = {
    "honest": "Training and every choice (the best evaluation, the seed) saw the training data and a part carved from it; the "
    "reported split was scored once, when all was decided.",
    "customary": "The search saw the reported split itself, as is customary in the literature: the score is optimistic.",
}
PIPELINES = {"classification": "text-classification", "regression": "text-classification", "generation": "text-generation"}
FACTS = {
    "data_fingerprint": "data fingerprint",
    MODEL_DIGEST: "SHA-256 of the base's files",
    "train_examples": "training examples",
    "search_examples": "search examples",
    "reported_examples": "reported examples",
    "device": "trained on",
    "versions": "versions",
}
COSTS = ("trainable_parameters", "head_parameters", "total_parameters", "adapter_bytes", "peak_memory_bytes", "step_seconds")


@dataclass(frozen=True)
class Origin:
    """The origin of an adapter: the sweep, its configuration, the trial, the reasons for the choice, and the sweep's answer."""

    sweep: str
    summary: Summary
    entry: Entry
    reasons: Sequence[str]
    answer: str = ""


def model_card(
    origin: Origin,
    record: Mapping[str, Any],
    *,
    pair: bool,
    merged: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> str:
    """Writes the card's text.

    Args:
        record: the content of the adapter's run.json.
        pair: whether the model reads two texts.
        merged: a sentence that compares the merged model with the adapter; None if the adapter is not merged.
        config: PEFT's configuration of the adapter; None if PEFT does not load the folder.
    """
    spec, summary, entry = record["spec"], origin.summary, origin.entry
    kind = "A fine-tuned" if merged else f"An adapter ({summary.method}) of"
    head = [
        _front_matter(spec, record["kind"], merged is not None),
        f"# {plain(full_label(summary))} on {plain(entry.trial.task)}",
        f"{kind} {_code(base_name(spec['model']))} for the task {_code(entry.trial.task)}: {_code(full_label(summary))}, seed "
        f"{entry.trial.seed}, from the sweep {_code(origin.sweep)}.",
    ]
    return "\n\n".join(
        [
            *head,
            "## Load it",
            *_loading(record, pair, merged, config),
            *_serving(record, config, merged is not None),
            "## Scores",
            _scores(origin),
            "\n".join(f"- {plain(reason)}" for reason in origin.reasons),
            *([f"What the sweep says: {plain(origin.answer)}"] if origin.answer else []),
            *_notes(record),
            "## Protocol and data",
            f"Protocol {_code(spec['protocol'])}. {PROTOCOLS.get(spec['protocol'], '')}",
            _table({title: record["facts"].get(name) for name, title in FACTS.items()}),
            "## Configuration",
            _table({"method": spec["method"], **flatten(spec["parameters"]), **_training(spec)}),
            "## Costs of the trained adapter",
            _table({name.replace("_", " "): record["counts"].get(name) for name in COSTS}),
        ]
    ) + "\n"  # fmt: skip


def add_card(adapter: Path, sweep: str, trial: PlannedTrial, result: TrialResult) -> None:
    """Puts a card into the sealed folder of a trial's adapter; it has the scores of this trial alone."""
    entry = Entry(trial.trial, result)
    (summary,) = summarize_entries([entry])
    run = json.loads((adapter / "run.json").read_text(encoding="utf-8"))
    origin = Origin(sweep, summary, entry, ())
    config = peft_config(adapter)
    add_file(adapter, CARD_FILE, model_card(origin, run, pair=reads_pairs(run), config=config))


def loading(record: Mapping[str, Any], *, pair: bool, merged: bool, folder: str = ".") -> str:
    """Lines of Python that load the model in `folder`, as it was scored, and give it an input."""
    auto = _auto(record["kind"])
    load = [
        f"from transformers import {auto}, AutoTokenizer",
        f"model, tokenizer = {auto}.from_pretrained({folder!r}), AutoTokenizer.from_pretrained({folder!r})",
    ]
    if not merged:
        load = ["from craft import load_adapter", f"model, tokenizer = load_adapter({folder!r})"]
    return "\n".join([*load, *_asking(record, pair)])


def _serving(record: Mapping[str, Any], config: Mapping[str, Any] | None, merged: bool) -> list[str]:
    """Returns the card's part on servers of language models."""
    if record["kind"] != "generation":
        return []
    commands = served_by(record, config, merged=merged)
    if not commands:
        return [
            "## Serve it",
            "vLLM, TGI and llama.cpp read no adapters of this form: take it with `--as lora` or `--as merged`.",
        ]
    code = "\n".join(commands)
    return ["## Serve it", f"With vLLM, TGI and llama.cpp, as far as each reads it:\n\n```\n{code}\n```"]


def _loading(record: Mapping[str, Any], pair: bool, merged: str | None, config: Mapping[str, Any] | None) -> list[str]:
    """Returns the card's part on loading: with plain transformers and PEFT if they can, and with `craft`."""
    ours = f"```python\n{loading(record, pair=pair, merged=merged is not None)}\n```"
    if merged or config is None or is_gguf(str(record["spec"]["model"])):
        return [ours, merged or _base(record)]
    also = "`craft.load_adapter` builds the very model that was scored, number format included:"
    return [f"```python\n{loading_by_peft(record, config, pair=pair)}\n```", also, ours, _base(record)]


def loading_by_peft(record: Mapping[str, Any], config: Mapping[str, Any], *, pair: bool, folder: str = ".") -> str:
    """Returns lines of Python that load the adapter in `folder` with plain transformers and PEFT, and give it an input."""
    from craft.tuners.registration import TUNERS

    auto, answers_in_words = _auto(record["kind"]), record["kind"] == "generation"
    name, place = base_name(str(record["spec"]["model"])), json.dumps(folder, ensure_ascii=False)
    labels = "" if answers_in_words else f", config=AutoConfig.from_pretrained({place})"
    lines = [
        *(
            ["import craft  # makes this method known to PEFT; from the project craft-sweeps"]
            if config["peft_type"] in TUNERS
            else []
        ),
        "from peft import PeftModel",
        f"from transformers import {'' if answers_in_words else 'AutoConfig, '}{auto}, AutoTokenizer",
        f"base = {auto}.from_pretrained({json.dumps(name, ensure_ascii=False)}{labels})",
        f"model = PeftModel.from_pretrained(base, {place}).eval()",
        f"tokenizer = AutoTokenizer.from_pretrained({place})",
    ]
    return "\n".join([*lines, *_asking(record, pair)])


def _asking(record: Mapping[str, Any], pair: bool) -> list[str]:
    inputs = '"the first text", "the second"' if pair else '"a text"'
    length = record["spec"]["training"]["max_length"]
    ask = f'inputs = tokenizer({inputs}, truncation=True, max_length={length}, return_tensors="pt")'
    if record["kind"] == "generation":
        tokens = record["spec"]["data"]["generation"]["max_new_tokens"]
        if record["facts"].get("prompt_form") == "chat template":
            return [
                'chat = [{"role": "user", "content": "a question"}]',
                "inputs = tokenizer.apply_chat_template(",
                '    chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"',
                ")",
                f"output = model.generate(**inputs, max_new_tokens={tokens}, do_sample=False)",
                'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))',
            ]
        return [ask, f"output = model.generate(**inputs, max_new_tokens={tokens})", "print(tokenizer.decode(output[0]))"]
    if record["kind"] == "regression":
        return [ask, "value = model(**inputs).logits.item()", "print(value)"]
    return [ask, "logits = model(**inputs).logits", "print(model.config.id2label[logits.argmax().item()])"]


def _front_matter(spec: Mapping[str, Any], kind: str, merged: bool) -> str:
    header: dict[str, Any] = {
        "library_name": "transformers" if merged else "peft",
        "pipeline_tag": PIPELINES.get(kind, "text-classification"),
        "tags": ["craft-sweeps", str(spec["method"])],
    }
    model = base_name(str(spec["model"]))
    if model == spec["model"] or "/" in model:
        header["base_model"] = model  # a hub links it by name; that of a local folder is no such name
    return f"---\n{yaml.safe_dump(header, sort_keys=True, allow_unicode=True).strip()}\n---"


def _base(record: Mapping[str, Any]) -> str:
    """Returns the sentence that says where the base model is found."""
    spec = record["spec"]
    name = str(spec["model"])
    shown = _code(base_name(name))
    place = f"The base model {shown} is looked up by that name; `load_adapter(folder, base=...)` takes it from elsewhere."
    if base_name(name) != name:
        place = f"The base model {shown} was a local one: write its place here, also as `load_adapter(folder, base=...)`."
    if not is_gguf(name):
        return place
    return (
        f"{place} It is a GGUF file, SHA-256 {_code(record['facts'].get(MODEL_DIGEST))}, and its weights are dequantized; "
        "another file is refused."
    )


def _auto(kind: str) -> str:
    return "AutoModelForCausalLM" if kind == "generation" else "AutoModelForSequenceClassification"


def _scores(origin: Origin) -> str:
    trial, result, summary = origin.entry.trial, origin.entry.result, origin.summary
    own = result.metrics if result else {}
    score = f"score ({summary.metric})" if " of " in summary.metric else "score"
    lines = [f"| | {plain(score)} | 95 % interval | search score | trials |", "| --- | --- | --- | --- | --- |"]
    rows: list[tuple[str, float, Interval | None, float | None, str]] = [
        (f"this adapter ({trial.task}, seed {trial.seed})", own.get("score", math.nan), None, own.get("search_score"), "1")
    ]
    several = len(summary.tasks) > 1
    rows += [
        # the one task's interval is the sweep's own, over seeds and examples, as the front shows it
        (f"the configuration on {task}, mean over seeds", value.mean, value if several else summary.score, None, str(value.n))
        for task, value in summary.tasks.items()
        if origin.reasons and (task == trial.task or several)  # without them it is a card of the trial alone
    ]
    if several:
        searched = summary.value("search_score")
        rows.append(
            ("the configuration, mean over tasks and seeds", summary.score.mean, summary.score, searched, str(summary.finished))
        )
    for name, mean, ends, search, count in rows:
        shown = number(search) if search is not None else ""
        lines.append(f"| {plain(name)} | {number(mean)} | {_ends(ends)} | {shown} | {count} |")
    if P_ENOUGH in summary.counts:
        lines.append(
            f"\nIn the sweep: expected score {number(summary.value(EXPECTED))}, less the luck of being chosen; "
            f"probability that it is enough {number(summary.value(P_ENOUGH))}; P(front) {number(summary.value(P_FRONT))}."
        )
    return "\n".join(lines)


def _ends(value: Interval | None) -> str:
    if value is None or not math.isfinite(value.half):
        return "one value: no interval"
    return f"{number(value.low)} to {number(value.high)}{'' if value.n > 1 else ' over examples, one seed'}"


def _notes(record: Mapping[str, Any]) -> list[str]:
    notes = record.get("notes") or []
    return ["**To be known:** " + "; ".join(plain(note) for note in notes)] if notes else []


def _training(spec: Mapping[str, Any]) -> dict[str, Any]:
    training = flatten({name: value for name, value in spec["training"].items() if value is not None})
    return {f"training.{name}" if name in spec["parameters"] else name: value for name, value in training.items()}


def _table(rows: Mapping[str, Any]) -> str:
    lines = ["| | |", "| --- | --- |"]
    for name, value in rows.items():
        if value is not None:
            lines.append(f"| {plain(name)} | {plain(_shown(name, value))} |")
    return "\n".join(lines)


def _shown(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    column = COLUMNS.get(name.replace(" ", "_"))
    return column.write(value) if column is not None and column.is_number else text(value)


def _code(code: str) -> str:
    """Returns `code` as a Markdown code span."""
    return f"`{' '.join(str(code).split()).replace('`', chr(39)).replace('|', '/')}`"
