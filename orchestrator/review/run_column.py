"""A column of a table of trainings: what its name and its cells say that it may be."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from craft.tasks.files import is_number
from craft.words import printable
from orchestrator.plan.configuration import text


def _words(text: str) -> list[str]:
    return text.split()


SHARES = _words("accuracy acc accuracy_score exact_match em")
"""Scores that are the share of right rows: the number of rows tells how far they are luck."""
HIGHER = SHARES + _words(
    "balanced_accuracy f1 f1_score f1_macro f1_micro macro_f1 micro_f1 mcc matthews matthews_correlation auc auroc roc_auc "
    "pearson pearsonr spearman spearmanr bleu rouge1 rouge2 rouge_l chrf reward win_rate"
)
LOWER = _words("loss nll log_loss cross_entropy perplexity ppl rmse mse mae wer cer bpb error_rate")
SPLIT = re.compile(r"(?:(train|training)|eval|test|val|valid|validation|dev)_")
PARTS = {
    "score": (HIGHER, LOWER),
    "size": (
        _words("trainable_params trainable_parameters num_trainable_params num_trainable_parameters n_trainable_params"),
        _words("params parameters num_params num_parameters n_params n_parameters param_count parameter_count"),
    ),
    "seed": (_words("seed random_seed random_state rng_seed training_seed data_seed fold repeat replicate"),),
    "task": (_words("task task_name dataset dataset_name benchmark"),),
    "examples": (_words("eval_samples eval_examples test_samples test_examples reported_examples scored_examples n_test"),),
    "answers": (_words("answers answers_file answers_path"),),
    "status": (_words("status state"),),
    "seconds": (_words("seconds train_runtime train_time training_time"),),
}
"""Canonical names of parts, those of a score also behind a split; a later list counts where a table has none of the first."""
SETTINGS = _words(
    "configuration method peft_type adapter model base_model model_name model_name_or_path optimizer optim scheduler "
    "lr_scheduler_type lr learning_rate rank ranks r alpha dropout batch_size weight_decay warmup_ratio warmup_steps betas "
    "modules target_modules projections layers num_layers hidden_size max_steps num_train_epochs train_examples dtype"
)
"""Names of settings, also behind another word (`lora_rank`)."""
PROGRESS = _words("epoch step global_step train_step iteration iter training_iteration checkpoint ckpt")
RUN = _words("run_id id trial_id uuid")
ABOUT = RUN + _words(
    "name run_name experiment_id experiment_name job_id sweep_id number index row notes user tags group created created_at "
    "updated sweep hostname commit duration runtime experiment artifact_uri start_time end_time timestamp date pid done "
    "url error error_msg error_message stop_reason output_dir logging_dir log_dir logdir save_dir job_type experiment_tag "
    "source_name source_type direction study_direction"
)
MEASURED = _words("minutes hours runtime time memory bytes flops std stderr sem train_loss")
TRACKED = re.compile(r"(params?|parameters?|config|hparams|(metrics?|summary|values?|user_attrs|system_attrs|tags))([./_])")
"""How MLflow and W&B (with a point) and Optuna (with `_`) begin the names of settings, and of what else a run has."""
FINISHED = _words("finished complete completed success succeeded done terminated")
STOPPED = _words("pruned stopped early_stopped")
FAILED = _words(
    "failed fail failure error errored crashed killed preempted oom timeout aborted cancelled canceled lost diverged running "
    "waiting scheduled pending paused queued created interrupted"
)
EMPTY = {"", "nan", "none", "null", "<na>", "nat"}
MISWRITTEN = re.compile(r"[\d.,' ]*\d[\d.,' ]*[%kKmM]?")
"""A number that is not written as one."""


def has_value(cell: Any) -> bool:
    """Returns whether a cell is not empty; one that is no number (NaN) is."""
    return cell is not None and cell == cell and not (isinstance(cell, str) and cell.strip().lower() in EMPTY)


def normal(cell: Any) -> Any:
    """Returns a cell as it is compared with others: finite numbers as such, text without outer blanks, None if it is empty."""
    if not has_value(cell):
        return None
    if isinstance(cell, int | float) and not isinstance(cell, bool) and abs(cell) < np.inf:
        return cell
    written = text(cell).strip()
    try:
        return int(written)
    except ValueError:
        return float(written) if is_number(written) else printable(written)


class Column:
    """A column: its name, without a tracker's prefix too (`title`), what the tracker says that it is, its distinct `values` and
    the place of each cell among these (`codes`)."""

    def __init__(self, name: str, cells: Sequence[Any], optuna: bool) -> None:
        self.name, self.cells, prefix = name, cells, TRACKED.match(name)
        prefix = prefix if prefix and (prefix[3] != "_" or optuna) else None
        self.title = name[prefix.end() :] if prefix else name
        self.declared = prefix is not None and not prefix[2]
        self.measured = bool(prefix[2]) if prefix else "/" in name
        self.plain, self.last = (_snake(part) for part in (self.title, re.split(r"[./]", self.title)[-1]))
        split = SPLIT.match(self.plain)
        self.trained, self.metric = bool(split and split[1]), self.plain[split.end() if split else 0 :]
        read = {cell: normal(cell) for cell in cells}
        places = {value: place for place, value in enumerate(dict.fromkeys(read.values()))}
        self.codes, self.values = np.array([places[read[cell]] for cell in cells], np.int64), [*places]

    def cell(self, row: int) -> Any:
        return self.values[self.codes[row]]

    @property
    def numbers(self) -> NDArray[np.float64]:
        """The cells as numbers, NaN where they are none."""
        return np.array([value if isinstance(value, int | float) else np.nan for value in self.values], float)[self.codes]

    @property
    def filled(self) -> NDArray[np.bool_]:
        return np.array([value is not None for value in self.values])[self.codes]

    @property
    def whole(self) -> bool:
        """Whether its cells are whole numbers, as seeds are."""
        return all(value is None or (not isinstance(value, str) and value == value // 1) for value in self.values)

    def may_be(self, part: str, *names: Sequence[str]) -> bool:
        name = self.metric if part == "score" else self.last
        return any(name in each for each in names) and not (part == "score" and self.declared)

    @property
    def is_setting(self) -> bool:
        """Whether its name says that it is a setting."""
        return any(f"_{self.last}".endswith(f"_{word}") for word in SETTINGS) and not self.measured

    @property
    def reason(self) -> str:
        """Why its name says that it is no setting; empty if it does not."""
        if self.last in PROGRESS:
            return "how far a training was"
        if self.last in ABOUT or re.fullmatch("unnamed_.*|datetime_.*|", self.plain) or self.title.startswith("_"):
            return "about the run"
        return "measured" if self.measured or self.last in MEASURED else ""

    @property
    def minimize(self) -> bool | None:
        """Whether less of it is better; None where its name does not say it, or a loss is below 0."""
        signed = any(value < 0 for value in self.values if isinstance(value, int | float))
        return False if self.metric in HIGHER else True if self.metric in LOWER and not signed else None


def _snake(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()).strip("_")


def state_of(cell: Any) -> str:
    """Returns a status as one word: `complete` of `TrialState.COMPLETE`."""
    return _snake(str(cell).rsplit(".", 1)[-1].lower())


def joined(columns: Iterable[Column], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the number of the combination of values that each of `rows` has, from 0."""
    numbers = np.zeros(len(rows), np.int64)
    for column in columns:
        numbers = np.unique(numbers * len(column.values) + column.codes[rows], return_inverse=True)[1]
    return numbers


def names_of(columns: Iterable[Column]) -> str:
    """Returns the value of an option that names columns."""
    csv.writer(line := io.StringIO(), lineterminator="").writerow(column.name for column in columns)
    return line.getvalue()
