"""What the columns of somebody's table of trainings are, guessed by their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from craft.tasks.files import DataError, Rows, is_number

Held = dict[str, list[Any]]


def _words(text: str) -> list[str]:
    return text.split()


HIGHER = _words(
    "score value accuracy acc match em f1 matthews mcc auc auroc spearman pearson correlation bleu rouge chrf reward average"
)
LOWER = _words("loss nll perplexity ppl rmse mse mae error wer cer bpb")
"""Last words of the names of scores, the likeliest first; of LOWER the lowest is the best."""
PARAMETERS = _words(
    "trainable_parameters num_trainable_parameters num_trainable_params trainable_params parameters params num_parameters "
    "num_params n_parameters n_params total_parameters total_params num_total_params"
)
COSTS = _words("size model_size adapter_bytes file_size bytes flops cost memory train_time train_runtime")
TIMES = _words("seconds train_time train_runtime training_time runtime")
RANKS = _words("rank r lora_r lora_rank")
SEEDS = _words("seed random_seed random_state training_seed data_seed fold repeat repetition replicate")
TASKS = _words("task task_name dataset dataset_name benchmark")
EXAMPLES = _words("reported_examples examples scored_examples eval_samples eval_examples test_examples n_test")
ANSWERS = _words("answers answers_file answers_path")
STATES = _words("status state")
NAMES = _words("label experiment_name name run_name runname")
GIVEN = re.compile(r"(params?|parameters?|config|hparams)[._/]")
"""How the names of settings begin where a tracker says which are: MLflow, Optuna, W&B."""
MEASURED = re.compile(r"(metrics?|summary|values?|user_attrs)[._/]")
ABOUT = re.compile(
    r"|_.*|.*_?id|number|notes|user|tags|group|created(_at)?|sweep|hostname|commit|duration|runtime|experiment|artifact_uri|"
    r"(start|end|created|updated)_time|datetime_.*|source_.*|.*(path|url|version|timestamp|date)|stop_reason|error(_msg)?"
)
"""Names of what is about a run: no setting and no measurement."""
MEASURES = {*_words("seconds minutes hours time runtime second memory bytes flops norm epoch step size"), *HIGHER, *LOWER}


@dataclass(frozen=True)
class Columns:
    """The columns of a table by their part in it, None where no column has it.

    `configuration` are settings that distinguish configurations, `label` is their name for people, `unit` what the size counts,
    `answers` the files with the score of each example.
    """

    score: str
    minimize: bool
    size: str | None
    unit: str
    seed: str | None
    task: str | None
    examples: str | None
    answers: str | None
    status: str | None
    seconds: str | None
    label: str | None
    configuration: tuple[str, ...]

    @property
    def sentences(self) -> list[str]:
        """How the table was read, for people."""
        parts = {"size": self.size, "seed": self.seed, "task": self.task, "examples": self.examples}
        parts |= {"answers": self.answers, "status": self.status}
        read = [f"score: {self.score}, {'lower' if self.minimize else 'higher'} is better"]
        read += [f"{part}: {name}" for part, name in parts.items() if name]
        return [*read, f"a configuration is what has equal {', '.join(self.configuration)}"]


def plain_name(name: str) -> str:
    """Returns the last part of a column's name as a word: `seed` of `params.seed`, `params_seed` and `tags.craft.seed`."""
    last = re.split(r"[./]", MEASURED.sub("", GIVEN.sub("", name)))[-1]
    return last if last.startswith("_") else re.sub(r"[^a-z0-9]+", "_", last.lower()).strip("_")


def guess(rows: Rows, score: str | None, size: str | None, seed: str | None, minimize: bool | None) -> Columns:
    """Returns the parts of the columns.

    Raises:
        DataError: a column that the call names is not there; no column looks like a score, or like a configuration.
    """
    for name in filter(None, (score, size, seed)):
        rows.column(name)
    held = {name: cells for name, cells in rows.columns.items() if any(map(has_value, cells))}
    score = score or _score(rows, held)
    task, examples, answers, status, label = (_first(held, names) for names in (TASKS, EXAMPLES, ANSWERS, STATES, NAMES))
    seed = seed or _first(held, SEEDS)
    size = size or _first(held, [*PARAMETERS, *COSTS, *RANKS], numbers=True)
    configuration = [*_configuration(held, {score, seed, task, examples, answers, status}, len(rows), seed)]
    trials = {*zip(*(held[name] for name in (*configuration, task, seed) if name), strict=True)}
    if label and (not configuration or (seed and len(trials) < len(rows))):
        configuration = [label]  # the settings do not distinguish rows, and their names do
    configuration = configuration or [name for name in [size] if name]
    if not configuration:
        raise DataError(f"{rows.source}: no column distinguishes configurations; add one called configuration")
    pairs = {(*map(str, cells),) for cells in zip(*(held[name] for name in (*configuration, label) if name), strict=True)}
    if len({pair[:-1] for pair in pairs}) < len(pairs) or len({pair[-1] for pair in pairs}) < len(pairs):
        label = None
    unit = "" if size is None else "parameters" if plain_name(size) in PARAMETERS else plain_name(size).replace("_", " ")
    lower = plain_name(score).split("_")[-1] in LOWER if minimize is None else minimize
    seconds = _first(held, TIMES, numbers=True)
    return Columns(score, lower, size, unit, seed, task, examples, answers, status, seconds, label, tuple(configuration))


def has_value(cell: Any) -> bool:
    """Returns whether a cell is not empty; one that is no number (NaN) is."""
    return cell not in (None, "", "nan") and cell == cell


def _numbers(cells: Sequence[Any]) -> bool:
    return all(is_number(str(cell)) for cell in cells if has_value(cell))


def _first(held: Held, names: Sequence[str], numbers: bool = False) -> str | None:
    """Returns the column whose name comes first in `names`."""
    fit = [name for name, cells in held.items() if plain_name(name) in names and not (numbers and not _numbers(cells))]
    return min(fit, key=lambda name: names.index(plain_name(name)), default=None)


def _score(rows: Rows, held: Held) -> str:
    """Returns the column of the score: of the likeliest kind, of a test rather than of a validation, never of training."""
    order, ranked = [*HIGHER, *LOWER], []
    for name, cells in held.items():
        parts = re.split(r"[^a-z0-9]+", MEASURED.sub("", name.lower()))
        if parts[-1] in order and "train" not in parts and not GIVEN.match(name) and _numbers(cells):
            split = 0 if "test" in parts else 2 if {"search", "eval", "val", "valid", "validation", "dev"} & {*parts} else 1
            ranked.append((order.index(parts[-1]), split, len(parts), name))
    if not ranked:
        raise DataError(f"{rows.source}: no column looks like a score; name it by --score: {', '.join(held)}")
    return min(ranked)[-1]


def _configuration(held: Held, used: set[str | None], rows: int, seed: str | None) -> Iterator[str]:
    """Yields the columns that distinguish configurations: one called so, or the settings that differ."""
    if column := _first(held, ["configuration"]):
        yield column
        return
    declared, several = any(map(GIVEN.match, held)), seed is not None and len({*map(str, held[seed])}) > 1
    for name, cells in held.items():
        plain, texts = plain_name(name), {*map(str, cells)}
        if len(texts) == 1 or name in used or plain in (*SEEDS, *TASKS) or (declared and not GIVEN.match(name)):
            continue
        # With several seeds a setting is the same in several rows, and a measurement is not.
        unique = several and len(texts) == rows and not all(text.isdigit() for text in texts)
        measured = plain in (*PARAMETERS, *COSTS, *TIMES, *EXAMPLES) or {*plain.split("_")} & MEASURES or unique
        if declared or not ((measured and _numbers(cells)) or MEASURED.match(name) or ABOUT.fullmatch(plain) or plain in NAMES):
            yield name
