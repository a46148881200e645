# ruff: noqa: E501
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
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

MEASURED = ("step_seconds", "tokens_per_second", "peak_memory_bytes")
SHORT = {"max_steps": 6, "train_examples": 40, "eval_examples": 24, "max_length": 24, "batch_size": 8, "learning_rate": 1e-2}
WORDS = {
    "max_steps": 3,
    "train_examples": 16,
    "eval_examples": 5,
    "max_length": 256,
    "batch_size": 4,
    "eval_batch_size": 4,
    "learning_rate": 1e-3,
}
TESTS = {"boolq": ("boolq", "true", "false"), "piqa": ("piqa", "solution1", "solution2")}
TESTS |= {"winogrande": ("winogrande", "option1", "option2"), "hellaswag": ("hellaswag", "ending1", "ending2", "ending3")}


class TinyRuns:
    """Models and data in a folder, and the runs that are made with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bert, self.llama = self._bert(), self._llama()
        self.root, self.pairs, self.rows = self._commonsense(), self._pairs(), self._rows()

    def _bert(self) -> str:
        import torch
        from transformers import BertConfig, BertModel

        from tests.conftest import toy_tokenizer

        tokenizer = toy_tokenizer()
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
        config = BertConfig(vocab_size=len(tokenizer), **sizes, initializer_range=0.2)
        BertModel(config).save_pretrained(self.folder / "bert")
        tokenizer.save_pretrained(self.folder / "bert")
        return str(self.folder / "bert")

    def _llama(self) -> str:
        import torch
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
        from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        letters = Tokenizer(models.BPE({token: at for at, token in enumerate(["<unk>", "<s>", "</s>", *alphabet])}, []))
        letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        letters.decoder = decoders.ByteLevel()
        letters.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        PreTrainedTokenizerFast(
            tokenizer_object=letters, bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_max_length=384
        ).save_pretrained(self.folder / "llama")
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=259, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            intermediate_size=48, max_position_embeddings=384, initializer_range=0.3, bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(self.folder / "llama")
        return str(self.folder / "llama")

    def _commonsense(self) -> str:
        def record(number: int, answers: tuple[str, ...]) -> dict[str, str]:
            answer = answers[number % len(answers)]
            texts = (
                "" if answers == ("true", "false") else "".join(f" {each.capitalize()}: a{number} {each}" for each in answers)
            )
            question = f"Item {number * 7 % 41} is _ odd?"
            text = f"{question}\n\n{texts.strip()}\n\nAnswer format: {'/'.join(answers)}"
            return {"instruction": text, "input": "", "output": f"the correct answer is {answer}", "answer": answer}

        folder = self.folder / "data" / "commonsense"
        folder.mkdir(parents=True)
        mixture = [
            record(number, answers) for number in range(20) for _, *listed in TESTS.values() for answers in [tuple(listed)]
        ]
        (folder / "commonsense_16k.json").write_text(json.dumps(mixture))
        for name, *answers in TESTS.values():
            (folder / "dataset" / name).mkdir(parents=True)
            (folder / "dataset" / name / "test.json").write_text(json.dumps([record(at, tuple(answers)) for at in range(6)]))
        return str(self.folder / "data")

    def _pairs(self) -> str:
        file, colours = self.folder / "pairs.jsonl", ("red", "blue", "green", "gold")
        pairs = [{"question": f"Colour of {at}?", "answer": f"It is {colours[at % 4]}."} for at in range(48)]
        file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        return str(file)

    def _rows(self) -> str:
        file = self.folder / "rows.csv"
        file.write_text("text,label\n" + "".join(f"row {at} is {'good' if at % 2 else 'bad'},{at % 2}\n" for at in range(40)))
        return str(file)

    def train(self, name: str, spec: dict[str, Any], leave: int | None = None, cuts: tuple[int, ...] = ()) -> dict[str, Any]:
        """Trains a run, from a checkpoint of step `leave` if that is given, and returns what came of it."""
        from craft.results import Leave, Progress
        from craft.spec import RunSpec
        from craft.trainer.training import train_run

        run, reports = RunSpec.model_validate(spec), list[Progress]()

        def end_step(step: int, _total: int) -> None:
            if step == leave:
                raise Leave("now")

        checkpoint: Path | None = None
        if leave is not None:
            try:
                train_run(run, self.folder / f"{name}-left", report=reports.append, on_step=end_step, cuts=cuts)
            except Leave:
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
        from craft.audit.audit import audit_adapter
        from craft.audit.folder import Data

        lines: list[str] = []
        audit = audit_adapter(folder, Data(**data), within=2.0, tell=lines.append)
        sizes = [(size.parameters, dict(size.ranks), size.score, asdict(size.difference)) for size in audit.sizes]
        for _, _, _, difference in sizes:
            del difference["draws"]
        told = [line.replace(str(self.folder), "") for line in lines if not line.startswith("scoring ")]
        return {"metric": audit.metric, "parameters": audit.parameters, "score": audit.score, "without": audit.without,
                "sizes": sizes, "verdict": audit.verdict, "warnings": audit.warnings, "told": told}  # fmt: skip

    def stranger(self, name: str, base: str, config: Any) -> Path:
        """Writes an adapter with random weights by plain PEFT."""
        import peft
        import torch
        from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

        torch.manual_seed(0)
        words = config.task_type == "CAUSAL_LM"
        model: Any = (
            AutoModelForCausalLM.from_pretrained(base)
            if words
            else AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
        )
        put: Any = peft.get_peft_model
        model = put(model, config)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad:
                    weight.add_(0.1 * torch.randn_like(weight))
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        return folder

    def runs(self) -> dict[str, Callable[[], Any]]:
        """The figures that are made by running something, by name."""
        import peft

        import craft

        def head(method: str = "craft", task: str = "toy/sentiment", **more: Any) -> dict[str, Any]:
            parameters = {"craft": {"ranks": ["all", 8, 8]}, "lora": {"rank": 4}}.get(method, {})
            spec = {"model": self.bert, "task": task, "method": method, "parameters": parameters | more.pop("parameters", {})}
            return spec | {"training": SHORT | more.pop("training", {})} | more

        def words(method: str = "craft", task: str = "commonsense", **generation: Any) -> dict[str, Any]:
            parameters = {"craft": {"ranks": ["all", 8, 8]}, "lora": {"rank": 4}}[method]
            spec = {"model": self.llama, "task": task, "method": method, "parameters": parameters, "training": WORDS}
            own = {"kind": "generation", "train": self.pairs, "prompt": "question", "response": "answer"}
            metric = generation.pop("metric", None)
            settings = {"tests": list(TESTS), "beams": 2, "max_new_tokens": 6} | generation
            data: dict[str, Any] = {"root": self.root, "generation": settings, "custom": {"qa": own | {"metric": metric}}}
            return spec | {"data": data}

        both, whole = ["query", "value"], {"label": "label", "labels": ("0", "1")}
        slow = {"gradient_accumulation": 2, "epochs": 2.4, "max_steps": None}
        language = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        answers = {"prompt": ("question",), "response": "answer"}
        methods = {
            "dora": {}, "pissa": {}, "milora": {}, "lora_xs": {"rank": 4}, "vera": {"rank": 8}, "ia3": {}, "lotr": {"rank": 4},
            "superlora": {"rank": 3}, "houlsby": {"bottleneck": 4}, "adapterdrop": {"bottleneck": 4}, "loretta": {"bottleneck": 8},
            "full": {}, "galore": {"projections": ["q", "v"]}, "bitfit": {}, "head": {}, "craft_star": {"ranks": ["all", 8, 8]},
            "peft": {"peft_type": "LILY", "config": {"r": 4, "num_B": 3}}, "adalora": {"init_rank": 4, "target_rank": 2},
        }  # fmt: skip
        return {
            "head": lambda: self.train("head", head(), cuts=(60, 100)),
            "head of a LoRA": lambda: self.train("head-lora", head("lora"), cuts=(460, 700)),
            "pairs, customary": lambda: self.train("pairs", head(task="toy/paraphrase", protocol="customary")),
            "dropout, bf16-mixed": lambda: self.train(
                "mixed", head(parameters={"dropout": 0.1}, training={"precision": "bf16-mixed", "head_start": "labels"})
            ),
            "bfloat16, rates by rank": lambda: self.train(
                "narrow", head(parameters={"rate_scaling": "rank"}, training={"precision": "bfloat16", "weight_decay": 0.1})
            ),
            "checkpointing": lambda: self.train("checkpointing", head(training={"gradient_checkpointing": True})),
            "resumed": lambda: self.train("resumed", head(parameters={"dropout": 0.1}, training=slow), leave=4),
            "by length": lambda: self.train("length", head("lora", training={"group_by_length": True})),
            "generation": lambda: self.train("generation", words()),
            "generation of a LoRA": lambda: self.train("generation-lora", words("lora")),
            "cloze": lambda: self.train("cloze", words(score="cloze")),
            "instructions": lambda: self.train("instructions", words(task="custom/qa")),
            "instructions, exact match": lambda: self.train("exact", words("lora", task="custom/qa", metric="exact_match")),
            "forgetting": lambda: self.train("forgetting", words(task="custom/qa") | {"measure": {"forgetting": {}}}),
            **{
                f"method {name}": lambda name=name, parameters=parameters: self.train(
                    f"method-{name}", head(name, parameters=parameters, training={"max_steps": 3})
                )
                for name, parameters in methods.items()
            },
            "audit of a LoRA": lambda: self.audit(
                self.stranger("whole-lora", self.bert, peft.LoraConfig(r=4, target_modules=both, task_type="SEQ_CLS")),
                held_out=self.rows, **whole,
            ),
            "audit of a DoRA, trained on": lambda: self.audit(
                self.stranger("whole-dora", self.bert, peft.LoraConfig(r=4, use_dora=True, target_modules=both, task_type="SEQ_CLS")),
                held_out=self.rows, train=self.rows, **whole,
            ),
            "audit of a CRAFT, trained on": lambda: self.audit(
                self.stranger("whole-craft", self.bert, craft.CraftConfig(ranks=("all", 8, 8), init_seed=0, task_type="SEQ_CLS")),
                held_out=self.rows, train=self.rows, **whole,
            ),
            "audit of PiSSA": lambda: self.audit(
                self.stranger(
                    "whole-pissa", self.bert,
                    peft.LoraConfig(r=4, init_lora_weights="pissa", target_modules=both, task_type="SEQ_CLS"),
                ),
                held_out=self.rows, **whole,
            ),
            "audit in words": lambda: self.audit(self.stranger("whole-words", self.llama, language), held_out=self.pairs, **answers),
            "audit by cloze": lambda: self.audit(
                self.stranger("whole-cloze", self.llama, language), held_out=self.pairs, metric="cloze", plain=True, **answers
            ),
        }  # fmt: skip

    def counts(self) -> dict[str, Any]:
        """The counts and the estimated memory of every method on three models of published shapes, from their `config.json`."""
        from transformers import BertConfig, LlamaConfig, MPNetConfig

        from craft.methods import METHODS
        from craft.spec import RunSpec
        from craft.trainer.counting import estimated_memory, planned_counts

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
