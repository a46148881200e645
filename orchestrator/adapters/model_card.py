"""The model card (README.md) of an adapter that is taken home: what it is, its scores, their protocol, and how to load it; and
`mistakes.md` next to it, with the classes that it confuses and its worst mistakes.

Model hubs read this form: YAML on top, Markdown below. Names of tasks, models and labels come from a sweep file, so the card
shows them as plain text, never as markup.

Sources of the commands that serve an adapter: vLLM 0.30 `vllm/lora/peft_helper.py` (one scale, alpha / r, for all modules; no
DoRA, no whole modules), llama.cpp's `llama_adapter_lora_weight` (alpha over the rank of each tensor; no rsLoRA),
text-generation-inference's guide to LoRA.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from craft import TUNERS
from craft.models.files import base_name, is_gguf
from craft.results import MODEL_DIGEST, name_score
from craft.scoring.predictions import WORST, Prediction, worst
from craft.tasks.prompts import PROMPTS
from orchestrator.adapters.merging import reads_pairs
from orchestrator.plan.configuration import flatten, text
from orchestrator.results.intervals import Interval
from orchestrator.results.metrics import COLUMNS, full_label, number
from orchestrator.results.probabilities import EXPECTED, P_ENOUGH, P_FRONT
from orchestrator.results.summary import Entry, Summary
from orchestrator.review.comparing import confusions
from orchestrator.tools.markup import plain

CONFIG_FILE = "adapter_config.json"


def peft_config(folder: Path) -> dict[str, Any] | None:
    """Returns the content of an adapter's adapter_config.json; None if PEFT does not load the folder."""
    file = folder / CONFIG_FILE
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def served_by(
    record: Mapping[str, Any], config: Mapping[str, Any] | None, folder: str = ".", *, merged: bool = False
) -> list[str]:
    """Returns the commands that serve a language model; none for others, nor where a server would compute another scale."""
    if record["kind"] != "generation" or (is_gguf(str(record["spec"]["model"])) and not merged):
        return []
    from craft.audit.verdict import served_rank

    base, place = shlex.quote(base_name(str(record["spec"]["model"]))), shlex.quote(folder)
    if merged:
        return [
            f"vllm serve {place}",
            f"text-generation-launcher --model-id {place}",
            f"python convert_hf_to_gguf.py {place} --outfile model.gguf && llama-server -m model.gguf",
        ]
    if config is None or config["peft_type"] != "LORA" or config.get("use_dora") or config.get("modules_to_save"):
        return []
    commands = [f"vllm serve {base} --enable-lora --max-lora-rank {served_rank(config['r'])} --lora-modules adapter={place}"]
    if not config.get("rank_pattern"):
        commands.append(f"text-generation-launcher --model-id {base} --lora-adapters adapter={place}")
        if not config.get("use_rslora"):
            commands.append(
                f"python convert_lora_to_gguf.py --base {base} --outfile adapter.gguf {place} && llama-server -m BASE.gguf "
                "--lora adapter.gguf"
            )
    return commands


CARD_FILE, MISTAKES_FILE = "README.md", "mistakes.md"
SHOWN, MOST_CLASSES = ("row", "label", "answer", "probability", "text", "text_pair", "prompt"), 20
"""What is shown of a wrong answer; the most classes that have a table of confusions."""
TEMPLATE, LOADING = (Path(__file__).with_name(f"{name}.jinja") for name in ("model_card", "loading"))
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
class Taken:
    """An adapter that is taken home: its sweep, configuration and trial, the reasons for the choice, the sweep's answer, and
    the folder that gets it."""

    sweep: str
    summary: Summary
    entry: Entry
    reasons: tuple[str, ...]
    answer: str = ""
    folder: Path = Path()


def write_card(adapter: Taken, run: Mapping[str, Any], merged: str | None, answers: Mapping[str, Sequence[Prediction]]) -> None:
    card, trial = model_card(adapter, run, merged, peft_config(adapter.folder)), adapter.entry.trial
    if wrong := mistakes_page(f"{trial.label}, seed {trial.seed}", answers):
        (adapter.folder / MISTAKES_FILE).write_text(wrong, encoding="utf-8")
        card += f"\n`{MISTAKES_FILE}` shows where it is wrong, with texts of the data: leave it out where they are private.\n"
    (adapter.folder / CARD_FILE).write_text(card, encoding="utf-8")


def model_card(
    origin: Taken, record: Mapping[str, Any], merged: str | None = None, config: Mapping[str, Any] | None = None
) -> str:
    spec, summary, result = record["spec"], origin.summary, origin.entry.result
    base, gguf = base_name(str(spec["model"])), is_gguf(str(spec["model"]))
    expected = [number(summary.value(name)) for name in (EXPECTED, P_ENOUGH, P_FRONT)] if P_ENOUGH in summary.counts else None
    values: dict[str, Any] = {"origin": origin, "record": record, "base": base, "merged": merged, "expected": expected}
    values |= {"plain": plain, "code": _code, "number": number, "shown": _shown}
    card = ModelCard.from_template(
        _card_data(origin, record, merged is not None),
        template_path=str(TEMPLATE),
        **values,
        title=full_label(summary),
        kind="A fine-tuned" if merged else f"An adapter ({summary.method}) of",
        is_local=base != spec["model"],
        by_peft=None if merged or config is None or gguf else loading(record, "peft", config=config),
        ours=loading(record, "transformers" if merged else "craft"),
        gguf=gguf and record["facts"].get(MODEL_DIGEST),
        commands="\n".join(served_by(record, config, merged=merged is not None)),
        score=f"score ({summary.metric})" if " of " in summary.metric else "score",
        rows=_scores(origin, result.metrics if result else {}),
        protocol=PROTOCOLS.get(spec["protocol"], ""),
        tables=[
            ("", {title: record["facts"].get(name) for name, title in FACTS.items()}),
            ("Configuration", {"method": spec["method"], **flatten(spec["parameters"]), **_training(spec)}),
            ("Costs of the trained adapter", {name.replace("_", " "): record["counts"].get(name) for name in COSTS}),
        ],
    )
    return str(card)


def _card_data(origin: Taken, record: Mapping[str, Any], merged: bool) -> ModelCardData:
    model, task, result = str(record["spec"]["model"]), origin.entry.trial.task, origin.entry.result
    base, pipeline = base_name(model), PIPELINES[record["kind"]]
    scores = []
    if result is not None and "score" in result.metrics:
        scores = [EvalResult(pipeline, task, task, name_score(result.facts) or "score", result.metrics["score"])]
    return ModelCardData(
        base_model=base if base == model or "/" in base else None,  # a hub links it by name; a local folder's is no such name
        library_name="transformers" if merged else "peft",
        pipeline_tag=pipeline,
        tags=["craft-sweeps", str(record["spec"]["method"])],
        model_name=full_label(origin.summary),
        eval_results=scores or None,
    )


def loading(
    record: Mapping[str, Any],
    by: Literal["craft", "peft", "transformers"],
    folder: str = ".",
    config: Mapping[str, Any] | None = None,
) -> str:
    """Returns lines of Python that load the model in `folder` with a library, and give it an input."""
    from jinja2 import Environment

    kind, prompt = record["kind"], PROMPTS.get(record["facts"].get("prompt_form"))
    template = Environment(trim_blocks=True, lstrip_blocks=True).from_string(LOADING.read_text(encoding="utf-8"))
    return template.render(
        record=record,
        by=by,
        pair=reads_pairs(record),
        kind=kind,
        text=json.dumps(prompt.for_evaluation("a question") if prompt else "a text"),
        auto="AutoModelForCausalLM" if kind == "generation" else "AutoModelForSequenceClassification",
        ours=config is not None and config["peft_type"] in TUNERS,
        folder=json.dumps(folder, ensure_ascii=False),
        base=json.dumps(base_name(str(record["spec"]["model"])), ensure_ascii=False),
    ).strip()


def _scores(origin: Taken, adapter_metrics: Mapping[str, float]) -> list[tuple[str, float, str, float | None, int]]:
    """Returns the rows of the table of scores: name, mean, ends of its interval, search score and number of trials."""
    trial, summary = origin.entry.trial, origin.summary
    several, name = len(summary.tasks) > 1, f"this adapter ({trial.task}, seed {trial.seed})"
    rows = [(name, adapter_metrics.get("score", math.nan), _ends(None), adapter_metrics.get("search_score"), 1)]
    for task, value in summary.tasks.items():
        if task == trial.task or several:
            # the one task's interval is the sweep's own, over seeds and examples, as the front shows it
            ends = _ends(value if several else summary.score)
            rows.append((f"the configuration on {task}, mean over seeds", value.mean, ends, None, value.n))
    if several:
        name, mean, searched = "the configuration, mean over tasks and seeds", summary.score, summary.value("search_score")
        rows.append((name, mean.mean, _ends(mean), searched, summary.finished))
    return rows


def _ends(value: Interval | None) -> str:
    if value is None or not math.isfinite(value.half):
        return "one value: no interval"
    return f"{number(value.low)} to {number(value.high)}{'' if value.n > 1 else ' over examples, one seed'}"


def _training(spec: Mapping[str, Any]) -> dict[str, Any]:
    training = flatten({name: value for name, value in spec["training"].items() if value is not None})
    return {f"training.{name}" if name in spec["parameters"] else name: value for name, value in training.items()}


def _shown(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    column = COLUMNS.get(name.replace(" ", "_"))
    return column.write(value) if column is not None and column.is_number else text(value)


def _code(code: str) -> str:
    return f"`{' '.join(str(code).split()).replace('`', chr(39)).replace('|', '/')}`"


def mistakes_page(title: str, answers: Mapping[str, Sequence[Prediction]]) -> str:
    """Writes the page of a trial's answers, by split. It is empty if no line has a label and an answer."""
    parts = []
    for split, lines in answers.items():
        if all("answer" in line and "label" in line for line in lines):
            classes, mistakes = "right" in lines[0], [lines[place] for place in worst(lines)]
            heads = [name for name in SHOWN if any(name in line for line in mistakes)]
            table = _table(heads, ([line.get(name, "") for name in heads] for line in mistakes)) if mistakes else "none"
            parts += [f"## {plain(split)}", *(_confused(lines) if classes else [])]
            parts += ["Most confident mistakes:" if classes else "Largest errors:", table]
    return "\n\n".join([f"# Where {plain(title)} is wrong", *parts]) + "\n" if parts else ""


def _confused(lines: Sequence[Prediction]) -> list[str]:
    names, counts = confusions(lines)
    right = f"{sum(line['right'] for line in lines):,} of {len(lines):,} rows are right."
    if len(names) <= MOST_CLASSES:
        return [
            right,
            _table(["label \\ answer", *map(plain, names)], ([name, *row] for name, row in zip(names, counts, strict=True))),
        ]
    pairs = ((counts[i][j], label, answer) for i, label in enumerate(names) for j, answer in enumerate(names) if i != j)
    return [right, _table(["rows", "label", "answer"], sorted((pair for pair in pairs if pair[0]), reverse=True)[:WORST])]


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *([plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
