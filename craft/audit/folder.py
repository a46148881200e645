"""What an audit reads: an adapter's folder as PEFT writes it, with its model; no record of a run is needed.
And `Data`, the rows to score: `describe` makes of both the audit as a run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peft import PEFT_TYPE_TO_CONFIG_MAPPING, PeftModel, PeftType, PromptLearningConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from craft.models import Base
from craft.models.adapters import CONFIG_FILE, WEIGHTS_FILE, attach_adapter, read_config, read_shapes
from craft.models.compute import compute_device
from craft.models.files import resolve_model
from craft.models.loading import load_model, load_tokenizer
from craft.scoring.scorer import splits_of
from craft.settings import CustomTask, DataSettings, TrainingSettings
from craft.spec import RunSpec
from craft.tasks.files import read_rows
from craft.tasks.task import Kind, Task
from craft.trainer.adapter_folder import read_record, refuse_other_model
from craft.words import format_bytes

TASKS = ("SEQ_CLS", "CAUSAL_LM", None)
"""PEFT's task types that are scored."""
CRAFT = "CRAFT"
LONGEST_NAME = 1000
STAYS = ("gaussian", "eva", "orthogonal", "mica")
"""Values of LoRA's `init_lora_weights` by which the base stays as it is."""
VOCABULARY = 2**28
"""The most bytes of a tokenizer's file."""
_HEAD = re.compile(r"base_model\.model\.(score|(?!pre_)\w*classifier|classification_head)(\.out_proj)?\.weight")
_VOCABULARY = re.compile(r"base_model\.model\..*(embed_tokens|wte|word_embeddings)\.(weight|base_layer\.weight)")


@dataclass(frozen=True)
class Folder:
    """What a folder holds, read from its two files: PEFT's configuration, and the shapes of its weights by name."""

    path: Path
    config: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    base: str
    revision: str | None = None
    seed: int = 0  # of what the base's checkpoint lacks, such as a pooler
    precision: str = "float32"

    @property
    def peft_type(self) -> str:
        return str(self.config["peft_type"])

    @property
    def outputs(self) -> int | None:
        """The number of outputs of its task head; None if it has none."""
        rows = [shape[0] for name, shape in self.shapes.items() if _HEAD.fullmatch(name) and len(shape) == 2]
        return rows[-1] if rows else None

    @property
    def is_language_model(self) -> bool:
        task = self.config.get("task_type")
        return task == "CAUSAL_LM" or (task is None and self.outputs is None)

    @property
    def moves_base(self) -> bool:
        """Whether loading the adapter subtracts its start from the base's weights (PiSSA, OLoRA, CorDA, MiLoRA)."""
        start = self.config.get("init_lora_weights")
        return self.peft_type == "MILORA" or (isinstance(start, str) and start.lower() not in STAYS)

    @property
    def embedding_rows(self) -> int | None:
        """The rows of its own embeddings; None if it has the base's."""
        return next((shape[0] for name, shape in self.shapes.items() if _VOCABULARY.fullmatch(name)), None)

    @property
    def run(self) -> RunSpec | None:
        """The run of this package that trained it, on the base that is here; None if none did."""
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            spec = RunSpec.model_validate(read_record(self.path)["spec"])
            return spec.model_copy(update={"model": self.base, "revision": self.revision})
        return None

    @property
    def cut(self) -> tuple[str, int] | None:
        """The run from whose adapter this package cut it, and the parameters that it left; None if it is no such cut."""
        with suppress(KeyError, TypeError, ValueError):
            if (run := self.run) is not None and run.cut_from is not None:
                return run.cut_from.run, int(read_record(self.path)["counts"]["trainable_parameters"])
        return None

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Returns the tokenizer that was saved with it, else the base's."""
        names = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model")
        has_tokenizer = (self.path / "tokenizer_config.json").is_file() and any((self.path / name).is_file() for name in names)
        if not has_tokenizer:
            return load_tokenizer(self.base, revision=self.revision)
        try:
            for name in (*names, "tokenizer_config.json"):
                if (self.path / name).is_file() and (self.path / name).stat().st_size > VOCABULARY:
                    raise ValueError(f"{name} has over {format_bytes(VOCABULARY)}")
            return load_tokenizer(self.base, files=self.path)
        except Exception as error:  # of many kinds, as libraries check little of a stranger's files
            advice = "Copy it from where the adapter was trained, or remove its files to take the base's"
            raise ValueError(f"the tokenizer in {self.path} cannot be read: {error}. {advice}") from error

    def load_base(self, kind: Kind, labels: Sequence[str], pad_token_id: int | None) -> PreTrainedModel:
        """Loads the base model as it is stored."""
        base = Base(self.base, kind, tuple(labels), self.revision, self.precision, pad_token_id=pad_token_id)
        return load_model(base, seed=self.seed)

    def load(self, kind: Kind, labels: Sequence[str], pad_token_id: int | None) -> PeftModel:
        """Loads base model and adapter, on this machine's device. Raises ValueError if they do not fit."""
        try:
            return self._load(kind, labels, pad_token_id)
        except ValueError:
            if self.peft_type == CRAFT and self.run is None:  # nothing says in which format its base was
                with suppress(ValueError):
                    return replace(self, precision="bfloat16")._load(kind, labels, pad_token_id)
            raise

    def _load(self, kind: Kind, labels: Sequence[str], pad_token_id: int | None) -> PeftModel:
        model: Any = self.load_base(kind, labels, pad_token_id)
        if self.embedding_rows is not None and self.embedding_rows != model.get_input_embeddings().num_embeddings:
            model.resize_token_embeddings(self.embedding_rows)
            model.config.pad_token_id = pad_token_id  # the base's own rows may end before it
        if pad_token_id is not None and pad_token_id >= (rows := model.get_input_embeddings().num_embeddings):
            raise ValueError(
                f"the tokenizer of {self.path} pads with token {pad_token_id:,}, and the model has rows 0 to {rows - 1:,}. "
                "Save the adapter with save_embedding_layers=True, or name another pad_token in its tokenizer_config.json"
            )
        return attach_adapter(model, self.path, self.base).eval().to(compute_device())


def read_folder(path: Path, base: str | None = None) -> Folder:
    """Reads an adapter's folder; `base` is the base model's place here. Raises ValueError if it cannot be audited."""
    path = path.expanduser()
    if not (path / CONFIG_FILE).is_file():
        raise ValueError(f"{path} holds no adapter: {_described(path)}. Give the folder with {CONFIG_FILE}")
    config = read_config(path / CONFIG_FILE)
    kind = PeftType(config["peft_type"])
    if issubclass(PEFT_TYPE_TO_CONFIG_MAPPING[kind], PromptLearningConfig):
        raise ValueError(
            f"{path} holds {kind.value}: it puts vectors before the text and changes no weight, so nothing can be cut"
        )
    if not (path / WEIGHTS_FILE).is_file():
        pickled = (path / "adapter_model.bin").is_file()
        advice = "its weights are pickled (adapter_model.bin), and no pickle is read; save it again with a PEFT of today"
        raise ValueError(f"{path} has no {WEIGHTS_FILE}: {advice if pickled else 'copy it from where the adapter was trained'}")
    if config.get("bias", "none") not in ("none", False) or config.get("lora_bias"):
        name = "lora_bias" if config.get("lora_bias") else "bias"
        raise ValueError(
            f"{path} trains biases too ({name}: {config[name]}), which no SVD makes smaller; such adapters are not audited"
        )
    if config.get("task_type") not in TASKS:
        raise ValueError(
            f"{path} is for {config['task_type']}; adapters for {' and '.join(filter(None, TASKS))} are scored, which answer "
            "with a class, a number or a text"
        )
    if config.get("layer_replication"):
        raise ValueError(f"{path} repeats layers of its base (layer_replication), which a LoRA of the base cannot; not audited")
    shapes = read_shapes(path)
    model = base or config.get("base_model_name_or_path")
    if not model or len(str(model)) > LONGEST_NAME:
        raise ValueError(f"{path / CONFIG_FILE} names no base model; give it as --base")
    _refuse_quantized(path, str(model))
    named = model == config.get("base_model_name_or_path")
    folder = Folder(path, config, shapes, str(model), config.get("revision") if named else None)
    if (run := folder.run) is not None:
        refuse_other_model(folder.base, read_record(path))
        # CRAFT's factors are those of weights of one format. Other adapters are cut in float32, in which they can be merged.
        folder = replace(folder, seed=run.seed, precision=run.training.precision if folder.peft_type == CRAFT else "float32")
    return folder


def _described(path: Path) -> str:
    """Returns what a folder without an adapter holds."""
    if not path.is_dir():
        return "there is no such folder"
    if inner := sorted(file.parent.name for file in path.glob(f"*/{CONFIG_FILE}")):
        return f"adapters are in {', '.join(inner[:5])}"
    if (path / "config.json").is_file() and any(path.glob("model*.safetensors")):
        return (
            "it is a whole model, perhaps with an adapter merged into its weights, where the adapter's change is not to be seen"
        )
    names = sorted(entry.name for entry in path.iterdir())
    return f"it holds {', '.join(names[:6])}" if names else "it is empty"


def _refuse_quantized(path: Path, base: str) -> None:
    try:
        config = json.loads((Path(resolve_model(base)) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # of a hub id; loading it says what is wrong
    if "quantization_config" in config:
        raise ValueError(
            f"the base of {path}, {base}, is stored with quantized weights. Give the same model with whole weights as --base"
        )


NAME = "audited"
RATE = 1e-3
LONGEST = 256


@dataclass(frozen=True)
class Data:
    """The rows to score, and to train on.

    Attributes:
        held_out: the file that is scored; the reported rows of the adapter's own run if None.
        train: the file that cuts are trained on; they are scored as cut if there is none.
        text: one text column, or two; all but the label's if empty.
        label: the column of classes or numbers.
        prompt, response, messages: columns for a language model.
        plain: whether pairs are read as they stand (True), or in the tokenizer's chat template, or Alpaca's form if it has none
            (False); None takes what makes the answers likelier to the adapter.
        labels: names of the classes, in the order of the head's outputs.
        metric: the score; accuracy, pearson or likelihood if None. `cloze` is the share of rows whose answer is the
            likeliest of all that the rows have.
        max_length: tokens of an input; as the adapter was trained if None, or LONGEST where that is not known.
    """

    held_out: str | None = None
    train: str | None = None
    text: tuple[str, ...] = ()
    label: str | None = None
    prompt: tuple[str, ...] = ()
    response: str | None = None
    messages: str | None = None
    labels: tuple[str, ...] | None = None
    metric: str | None = None
    max_length: int | None = None
    plain: bool | None = None


def as_trained(folder: Folder, data: Data) -> Data:
    """Returns the data, read as in the adapter's own run where that is known and nothing else is given."""
    if (run := folder.run) is None or data.held_out is None:
        return data
    plain, form = data.plain, run.data.generation.prompt
    if plain is None and data.prompt and run.task.startswith("custom/") and form != "llm_adapters":
        plain = form == "none"
    return replace(data, max_length=data.max_length or run.training.max_length, plain=plain)


def describe(folder: Folder, data: Data) -> tuple[RunSpec, Task]:
    """Returns the audit as a run on own data, and its task. Raises ValueError where data and adapter do not fit."""
    if data.held_out is None:
        return _own(folder, data)
    in_words, outputs = folder.is_language_model, folder.outputs
    if in_words:
        if not (data.messages or (data.prompt and data.response)):
            raise ValueError(f"{folder.path} is of a language model: name --prompt and --response, or --messages, of the data")
        if data.plain and data.messages:
            raise ValueError("chats are read in the tokenizer's template: give --plain with --prompt and --response alone")
        columns: dict[str, Any] = {name: getattr(data, name) for name in ("prompt", "response", "messages")}
        columns["kind"] = "generation"
    else:
        if outputs is None:
            raise ValueError(
                f"{folder.path} holds no task head (modules_to_save), and a random one has no score; save the adapter with "
                "PEFT's task_type SEQ_CLS"
            )
        if data.label is None:
            raise ValueError("name the column of the labels: --label")
        names = [name for name in read_rows(data.held_out).columns if name != data.label]
        text = data.text or tuple(names)
        if not 1 <= len(text) <= 2:
            raise ValueError(f"{data.held_out} has the columns {', '.join(names)}: name one or two that hold texts by --text")
        kind = "regression" if outputs == 1 else "classification"
        columns = {"text": text, "label": data.label, "kind": kind, "labels": data.labels if outputs > 1 else None}
    custom_task = CustomTask(train=data.train or data.held_out, validation=data.held_out, metric=data.metric, **columns)
    training = TrainingSettings(
        learning_rate=RATE, head_learning_rate=RATE, max_length=data.max_length or LONGEST, head_start="random"
    )
    written: dict[str, Any] = {"generation": {"prompt": "none"}} if data.plain else {}
    if in_words:
        training = training.without_head()
    spec = RunSpec(
        model=folder.base,
        revision=folder.revision,
        task=f"custom/{NAME}",
        method="craft" if folder.peft_type == CRAFT else "lora",
        training=training,
        data=DataSettings(custom={NAME: custom_task}, **written),
    )
    task = spec.task_row
    if not in_words and task.kind == "classification" and len(task.labels) != outputs:
        raise ValueError(
            f"the head of {folder.path} has {outputs} outputs, and {data.train or data.held_out} {len(task.labels)} classes "
            f"({', '.join(task.labels[:8])}): name all of them by --labels, in the order of the training"
        )
    return spec, task


def _own(folder: Folder, data: Data) -> tuple[RunSpec, Task]:
    """Returns the run that trained the adapter, and its task. Raises ValueError where its reported rows cannot be scored."""
    if (run := folder.run) is None:
        raise ValueError(f"name the held-out rows by --data: {folder.path} has no record of a run of this package")
    if data != Data(labels=data.labels, max_length=data.max_length):
        raise ValueError("columns, metric, form and --train go with --data; without it the run's reported rows are scored")
    task, training = run.task_row, run.training
    splits = splits_of(run, task)
    if len(splits.reported) > 1 or (task.kind == "generation" and task.suite != "custom"):
        raise ValueError(f"{task.name} reports several tests: give the rows of one as --data")
    if splits.fingerprint != read_record(folder.path).get("facts", {}).get("data_fingerprint", splits.fingerprint):
        raise ValueError(f"the data of {task.name} are not those that the adapter's run had; give rows as --data")
    if data.max_length is not None:
        training = training.model_copy(update={"max_length": data.max_length})
    return run.model_copy(update={"training": training}), task
