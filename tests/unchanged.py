"""What a change of `craft/` must leave as it is: parameter counts, the keys of runs, and the scores and weights of tiny runs.

    python tests/unchanged.py freeze FILE     writes the figures of this checkout to FILE, a JSON file
    python tests/unchanged.py compare FILE    prints each figure that differs from FILE; the exit status is 1 if one does

Weights and predictions are compared by their SHA-256, so FILE holds for one machine and one set of libraries alone. Runs whose
names are given after FILE are the only ones that are made again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

from transformers import BertConfig, LlamaConfig, MPNetConfig

import craft
from craft.audit.audit import audit_adapter
from craft.audit.folder import Data
from craft.methods import METHODS
from craft.results import Leave, Progress
from craft.spec import RunSpec
from craft.trainer.counting import estimated_memory, planned_counts
from craft.trainer.training import train_run
from tests.conftest import make_tiny_bert
from tests.craft.audit.plain_folders import CONFIGS, rows, saved
from tests.craft.audit.test_language_models import saved_llama
from tests.craft.conftest import make_tiny_llama
from tests.craft.methods.cases import CASES
from tests.craft.scoring.test_answers import TESTS, write_tests
from tests.craft.trainer.same import leave_at
from tests.word_pairs import colours

MEASURED = ("step_seconds", "tokens_per_second", "peak_memory_bytes")
SHORT = {"max_steps": 6, "train_examples": 40, "eval_examples": 24, "max_length": 24, "batch_size": 8, "learning_rate": 1e-2}
WORDS = SHORT | {
    "max_steps": 3,
    "train_examples": 16,
    "eval_examples": 5,
    "max_length": 256,
    "batch_size": 4,
    "learning_rate": 1e-3,
}


class TinyRuns:
    """Models and data in a folder, and the runs that are made with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bert, self.llama = make_tiny_bert(folder / "bert"), make_tiny_llama(folder / "llama")
        self.root, self.rows = str(write_tests(folder / "data")), rows(folder)

    def train(self, name: str, spec: dict[str, Any], leave: int | None = None, cuts: tuple[int, ...] = ()) -> dict[str, Any]:
        """Trains a run, from a checkpoint of step `leave` if that is given, and returns what came of it."""
        run, reports = RunSpec.model_validate(spec), list[Progress]()
        checkpoint: Path | None = None
        if leave is not None:
            with suppress(Leave):
                train_run(run, self.folder / f"{name}-left", report=reports.append, on_step=leave_at(leave), cuts=cuts)
            checkpoint = reports[-1].checkpoint
        result = train_run(run, self.folder / name, report=reports.append, resume_from=checkpoint, cuts=cuts)
        return {
            "key": run.key,
            "searched": [progress.metrics for progress in reports],
            **self._outcome(result),
            "cuts": [self._outcome(cut) for cut in result.cuts],
        }

    def _outcome(self, result: Any) -> dict[str, Any]:
        counts = {name: value for name, value in result.counts.known().items() if name not in MEASURED}
        facts = {name: value for name, value in result.facts.items() if name not in ("versions", "device")}
        place = result.adapter.parent
        files = {
            str(file.relative_to(place)): _digest(file)
            for file in [*result.adapter.glob("*.safetensors"), place / "predictions.safetensors", *place.glob("predictions/*")]
            if file.is_file()
        }
        return {"metrics": result.metrics, "counts": counts, "notes": result.notes, "facts": facts, "files": files}

    def audit(self, folder: Path, **data: Any) -> dict[str, Any]:
        lines: list[str] = []
        audit = audit_adapter(folder, Data(**data), within=2.0, tell=lines.append)
        sizes = [(size.parameters, dict(size.ranks), size.score, asdict(size.difference)) for size in audit.sizes]
        for _, _, _, difference in sizes:
            del difference["draws"]
        told = [line.replace(str(self.folder), "") for line in lines if not line.startswith("scoring ")]
        return {"metric": audit.metric, "parameters": audit.parameters, "score": audit.score, "without": audit.without,
                "sizes": sizes, "verdict": audit.verdict, "warnings": audit.warnings, "told": told}  # fmt: skip

    def runs(self) -> dict[str, Callable[[], Any]]:
        """The figures that are made by running something, by name."""

        def head(method: str = "craft", task: str = "toy/sentiment", **more: Any) -> dict[str, Any]:
            parameters = CASES[method].parameters | more.pop("parameters", {})
            spec = {"model": self.bert, "task": task, "method": method, "parameters": parameters}
            return spec | {"training": SHORT | more.pop("training", {})} | more

        def words(method: str = "craft", task: str = "commonsense", **generation: Any) -> dict[str, Any]:
            metric, settings = generation.pop("metric", None), {"tests": list(TESTS), "beams": 2, "max_new_tokens": 6}
            data = colours(self.folder, metric, **settings | generation)["data"] | {"root": self.root}
            return head(method, task, model=self.llama, data=data, training=WORDS)

        def audit(config: Any, **data: Any) -> dict[str, Any]:
            saved(self.bert, config, self.folder / "whole")
            return self.audit(self.folder / "whole", held_out=self.rows, label="label", labels=("0", "1"), **data)

        def audit_words(**data: Any) -> dict[str, Any]:
            saved_llama(self.llama, self.folder / "words", "q_proj", "v_proj")
            pairs = {"held_out": str(self.folder / "qa.jsonl"), "prompt": ("question",), "response": "answer"}
            return self.audit(self.folder / "words", **pairs, **data)

        trained = {
            "head": head(),
            "head of a LoRA": head("lora"),
            "pairs, customary": head(task="toy/paraphrase", protocol="customary"),
            "dropout, bf16-mixed": head(
                parameters={"dropout": 0.1}, training={"precision": "bf16-mixed", "head_start": "labels"}
            ),
            "bfloat16, rates by rank": head(
                parameters={"rate_scaling": "rank"}, training={"precision": "bfloat16", "weight_decay": 0.1}
            ),
            "checkpointing": head(training={"gradient_checkpointing": True}),
            "resumed": head(
                parameters={"dropout": 0.1}, training={"gradient_accumulation": 2, "epochs": 2.4, "max_steps": None}
            ),
            "by length": head("lora", training={"group_by_length": True}),
            "generation": words(),
            "generation of a LoRA": words("lora"),
            "cloze": words(score="cloze"),
            "instructions": words(task="custom/qa"),
            "instructions, exact match": words("lora", task="custom/qa", metric="exact_match"),
            "forgetting": words(task="custom/qa") | {"measure": {"forgetting": {}}},
            **{f"method {name}": head(name, training={"max_steps": 3}) for name in CASES if name in METHODS},
        }
        calls: dict[str, Any] = {"head": {"cuts": (60, 100)}, "head of a LoRA": {"cuts": (460, 700)}, "resumed": {"leave": 4}}
        return {name: partial(self.train, name, spec, **calls.get(name, {})) for name, spec in trained.items()} | {
            "audit of a LoRA": lambda: audit(CONFIGS["lora"]),
            "audit of a DoRA, trained on": lambda: audit(CONFIGS["dora"], train=self.rows),
            "audit of a CRAFT, trained on": lambda: audit(craft.CraftConfig(ranks=("all", 8, 8), init_seed=0), train=self.rows),
            "audit of PiSSA": lambda: audit(CONFIGS["pissa"]),
            "audit in words": audit_words,
            "audit by cloze": lambda: audit_words(metric="cloze", plain=True),
        }

    def counts(self) -> dict[str, Any]:
        """The counts and the estimated memory of every method on three models of published shapes, from their `config.json`."""
        minilm = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        llama3 = {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        configs = {
            "MiniLM": (BertConfig(**minilm), "glue/mrpc"),
            "MPNet": (MPNetConfig(), "glue/stsb"),
            "LLaMA3-8B": (LlamaConfig(**llama3, num_attention_heads=32, num_key_value_heads=8), "commonsense"),
        }
        figures: dict[str, Any] = {}
        for model, (config, task) in configs.items():
            config.save_pretrained(self.folder / model)
            for method in METHODS:
                parameters = {"peft_type": "LILY", "config": {"r": 8, "num_B": 3}} if method == "peft" else {}
                for precision in ("float32", "bfloat16"):
                    training = {"precision": precision}
                    spec = RunSpec(
                        model=str(self.folder / model), task=task, method=method, parameters=parameters, training=training
                    )
                    try:
                        planned: Any = planned_counts(spec).known() | {"memory": estimated_memory(spec)}
                    except ValueError as error:
                        planned = str(error)
                    figures[f"{model} {method} {precision}"] = {"key": spec.key, "counts": planned}
        return figures


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def differences(frozen: Any, figure: Any, place: str = "") -> list[str]:
    """Lists the places at which two figures differ, with both."""
    if isinstance(frozen, dict) and isinstance(figure, dict):
        names = dict.fromkeys([*frozen, *figure])
        return [line for name in names for line in differences(frozen.get(name), figure.get(name), f"{place} > {name}")]
    if isinstance(frozen, list) and isinstance(figure, list) and len(frozen) == len(figure):
        pairs = enumerate(zip(frozen, figure, strict=True))
        return [line for at, (left, right) in pairs for line in differences(left, right, f"{place} [{at}]")]
    return [] if frozen == figure else [f"{place.removeprefix(' > ')}: {frozen} became {figure}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("freeze", "compare"))
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("names", nargs="*", metavar="RUN", help="the runs to make; all if none is named")
    call = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CRAFT_CACHE_DIR"] = f"{folder}/cache"
        tiny = TinyRuns(Path(folder))
        made = {"counts": tiny.counts} | tiny.runs()
        figures: dict[str, Any] = {}
        for name in call.names or made:
            figures[name] = json.loads(json.dumps(made[name](), default=str).replace(folder, "FOLDER"))
            print(".", end="", flush=True)
    print()
    if call.mode == "freeze":
        call.file.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return 0
    frozen = json.loads(call.file.read_text(encoding="utf-8"))
    lines = [line for name, figure in figures.items() for line in differences(frozen.get(name), figure, name)]
    print(*lines, f"{len(figures)} compared, {len(lines)} differences", sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
