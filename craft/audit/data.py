"""`Data`: the rows that an audit reads, and `describe`: the audit as a run on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from craft.audit.folder import CRAFT, Folder
from craft.data_settings import CustomTask, DataSettings
from craft.scoring.scorer import splits_of
from craft.settings import TrainingSettings
from craft.spec import RunSpec
from craft.tasks import find_task
from craft.tasks.files import read_rows
from craft.tasks.task import Task
from craft.trainer.adapter_folder import read_record

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
        task=f"custom/{NAME}",
        method="craft" if folder.peft_type == CRAFT else "lora",
        training=training,
        data=DataSettings(custom={NAME: custom_task}, **written),
    )
    task = find_task(spec.task, spec.data)
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
    task, training = find_task(run.task, run.data), run.training
    splits = splits_of(run, task)
    if len(splits.reported) > 1 or (task.kind == "generation" and task.suite != "custom"):
        raise ValueError(f"{task.name} reports several tests: give the rows of one as --data")
    if splits.fingerprint != read_record(folder.path).get("facts", {}).get("data_fingerprint", splits.fingerprint):
        raise ValueError(f"the data of {task.name} are not those that the adapter's run had; give rows as --data")
    if data.max_length is not None:
        training = training.model_copy(update={"max_length": data.max_length})
    return run.model_copy(update={"training": training}), task
