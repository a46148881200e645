"""What each column of a table of trainings is: as the call says, or by the one canonical name of its part, and else a question.

Rows, Call  -->  read_columns  -->  RunColumns, or Unclear: what is not certain, and the commands that would say it
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from craft.tasks.files import DataError, Rows, is_number
from craft.words import list_some, printable
from orchestrator.plan.configuration import text
from orchestrator.review import terms

COMMANDS = 4
"""The most commands that a question ends with."""


@dataclass(frozen=True)
class Call:
    """What a caller says of a table's columns. A text names one; `seed`, `by` and `ignore` also several, with commas."""

    score: str | None = None
    minimize: bool | None = None
    size: str | None = None
    seed: str | None = None
    task: str | None = None
    by: str | None = None
    ignore: str | None = None
    independent: bool = False

    def command(self, source: str) -> str:
        said = asdict(self) | {"maximize": self.minimize is False}
        options = [f"--{name}" if value is True else f"--{name} {shlex.quote(value)}" for name, value in said.items() if value]
        return " ".join(["craft-sweeps judge", shlex.quote(source), *options])


class Unclear(DataError):
    """A table that is not judged before its caller says more.

    Args:
        questions: what is not certain, each with the changes of the call that would answer it.
    """

    def __init__(self, rows: Rows, call: Call, questions: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        combined = islice(product(*(answers or ({},) for answers in questions.values())), COMMANDS)
        calls = [replace(call, **{name: said for answer in answers for name, said in answer.items()}) for answers in combined]
        commands = list(dict.fromkeys(each.command(rows.source) for each in calls if each != call))
        lines = [f"{rows.source} is not judged yet:", *(f"  {question}" for question in questions)]
        lines += [f"Its columns: {list_some(list(rows.columns), 60)}", *(["Say it by"] if commands else [])]
        super().__init__("\n".join([*lines, *(f"  {line}" for line in commands)]))


def has_value(cell: Any) -> bool:
    """Returns whether a cell is not empty; one that is no number (NaN) is."""
    return cell is not None and cell == cell and not (isinstance(cell, str) and cell.strip().lower() in terms.EMPTY)


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


class RunColumn:
    """A column: its name, without a tracker's prefix too (`title`), what the tracker says that it is, its distinct `values` and
    the place of each cell among these (`codes`)."""

    def __init__(self, name: str, cells: Sequence[Any], optuna: bool) -> None:
        self.name, self.cells, prefix = name, cells, terms.TRACKED.match(name)
        prefix = prefix if prefix and (prefix[3] != "_" or optuna) else None
        self.title = name[prefix.end() :] if prefix else name
        self.declared = prefix is not None and not prefix[2]
        self.measured = bool(prefix[2]) if prefix else "/" in name
        self.plain, self.last = (_snake(part) for part in (self.title, re.split(r"[./]", self.title)[-1]))
        split = terms.SPLIT.match(self.plain)
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
        return any(f"_{self.last}".endswith(f"_{word}") for word in terms.SETTINGS) and not self.measured

    @property
    def reason(self) -> str:
        """Why its name says that it is no setting; empty if it does not."""
        if self.last in terms.PROGRESS:
            return "how far a training was"
        if self.last in terms.ABOUT or re.fullmatch("unnamed_.*|datetime_.*|", self.plain) or self.title.startswith("_"):
            return "about the run"
        return "measured" if self.measured or self.last in terms.MEASURED else ""

    @property
    def minimize(self) -> bool | None:
        """Whether less of it is better; None where its name does not say it, or a loss is below 0."""
        signed = any(value < 0 for value in self.values if isinstance(value, int | float))
        return False if self.metric in terms.HIGHER else True if self.metric in terms.LOWER and not signed else None


def _snake(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()).strip("_")


def state_of(cell: Any) -> str:
    """Returns a status as one word: `complete` of `TrialState.COMPLETE`."""
    return _snake(str(cell).rsplit(".", 1)[-1].lower())


def names_of(columns: Iterable[RunColumn]) -> str:
    """Returns the value of an option that names columns."""
    csv.writer(line := io.StringIO(), lineterminator="").writerow(column.name for column in columns)
    return line.getvalue()


@dataclass
class RunColumns:
    """The columns of a table by their part in it. All parts but seeds and settings have one or none.

    Attributes:
        left_out: why a column has no part, by name.
        minimize: whether less of the score is better; None if that is not known.
    """

    every: dict[str, RunColumn]
    parts: dict[str, list[RunColumn]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    minimize: bool | None = None
    finished: NDArray[np.bool_] = field(default_factory=lambda: np.ones(0, bool))

    def part(self, part: str) -> RunColumn | None:
        return next(iter(self.parts[part]), None)

    @property
    def free(self) -> list[RunColumn]:
        """The columns that have no part yet, and no reason to have none."""
        taken = {column.name for columns in self.parts.values() for column in columns} | self.left_out.keys()
        return [column for name, column in self.every.items() if name not in taken]

    def leave(self, columns: Iterable[RunColumn], why: str) -> None:
        self.left_out |= {column.name: why for column in columns}

    def named(self, said: str | None) -> list[RunColumn]:
        names = [] if said is None else [said] if said in self.every else next(csv.reader([said], skipinitialspace=True))
        if unknown := [name for name in names if name not in self.every]:
            raise DataError(f"there is no column {unknown[0]!r}; the columns are: {', '.join(self.every)}")
        return [self.every[name] for name in names]

    def fitting(self, part: str) -> list[RunColumn]:
        """Returns the columns whose names are of a part: of equal ones the first, and constant ones only where all are."""
        for names in terms.PARTS[part]:
            fit = [column for column in self.free[::-1] if column.may_be(part, names)]
            values = part in ("score", "size")  # of others the groups of rows matter alone
            distinct = {(column.codes.tobytes(), (*column.values,) * values): column for column in fit}.values()
            if chosen := [column for column in distinct if len(column.values) > 1][::-1] or [*distinct][:1]:
                return chosen
        return []

    @property
    def fractions(self) -> list[RunColumn]:
        """The columns with fractions of which nothing says that they are settings or about the run: they may be scores."""
        unsettled = [column for column in self.free if column.reason in ("", "measured") and column.last not in terms.MEASURED]
        unsettled = [column for column in unsettled if not (column.is_setting or column.declared or column.trained)]
        unsettled = [column for column in unsettled if not any(isinstance(value, str) for value in column.values)]
        return [column for column in unsettled if not column.whole]

    @property
    def sentences(self) -> list[str]:
        names = {part: ", ".join(column.name for column in self.parts[part]) for part in (*terms.PARTS, "settings")}
        names["score"] += f", {'less' if self.minimize else 'more'} is better"
        names["size"] = names["size"] or "none, so the best is looked for and not the smallest that is enough"
        reasons = {why: [name for name in self.left_out if self.left_out[name] == why] for why in self.left_out.values()}
        names["left out"] = "; ".join(f"{list_some(left, 12)} ({why})" for why, left in reasons.items())
        return [f"{part}: {name or 'none'}" for part, name in names.items() if name or part in ("seed", "settings")]


def read_columns(rows: Rows, call: Call) -> RunColumns:
    optuna = "number" in rows.columns and not {"state", "value", "values_0", "datetime_start"}.isdisjoint(rows.columns)
    columns = RunColumns({name: RunColumn(name, cells, optuna) for name, cells in rows.columns.items()})
    questions = dict[str, list[dict[str, Any]]]()
    columns.leave(columns.named(call.ignore), "--ignore")
    columns.leave([column for column in columns.free if not any(map(has_value, column.cells))], "empty")
    said = {part: columns.named(getattr(call, part, None)) for part in terms.PARTS}
    for part in ("score", "size", "task"):
        if len(said[part]) > 1:
            raise DataError(f"--{part} names one column, got {names_of(said[part])}; name one, or join them in the file")
    columns.parts = {part: fit for part, fit in said.items() if fit} | {"settings": columns.named(call.by)}
    metrics = {
        column.plain: column for column in columns.free if column.metric in terms.HIGHER + terms.LOWER and not column.declared
    }
    trained = [column for column in metrics.values() if column.trained or f"val_{column.plain}" in metrics]
    columns.leave(trained, "a training's score")
    for part in terms.PARTS:
        fit = said[part] or ([] if part == "seed" and call.independent else columns.fitting(part))
        columns.parts[part] = fit
        if len(fit) > 1 and not said[part] and part != "score":
            option = part if hasattr(call, part) else "ignore"
            answers = [names_of(fit)] * (part == "seed") + [column.name for column in fit]
            questions[f"{part}: {', '.join(column.name for column in fit)} fit"] = [{option: name} for name in answers]
        if part in ("score", "size") and fit:
            columns.leave([c for c in columns.free if c.may_be(part, *terms.PARTS[part])], f"another {part}")
    _check_cells(columns, rows)
    scores = columns.parts["score"]
    columns.minimize = _direction(columns, call, scores[0]) if scores else None
    if call.score or (len(scores) == 1 and (scores[0].metric in terms.HIGHER or not columns.fractions)):
        if columns.minimize is None:
            questions[f"direction: is more or less of {scores[0].name} better?"] = [{"minimize": False}, {"minimize": True}]
        questions |= {} if call.by else _find_settings(columns, rows)
    else:
        likely = [*scores, *columns.fractions] if len(scores) < 2 else scores
        likely, why = likely or trained, "may be it" if likely else "is a training's" if trained else "no column may be it"
        columns.parts["score"] = likely
        asked = {} if call.by else _find_settings(columns, rows)
        questions |= asked
        by = {"by": names_of(columns.parts["settings"])} if len(likely) > 1 and columns.parts["settings"] and not asked else {}
        sides = {column.name: _direction(columns, call, column) for column in likely}
        questions[f"score: {' '.join(filter(None, (', '.join(sides), why)))}"] = [
            {"score": name} | by | side
            for name, direction in sides.items()
            for side in ([{}] if direction is not None else [{"minimize": False}, {"minimize": True}])
        ]
    if questions:
        raise Unclear(rows, call, questions)
    for column in columns.parts["settings"]:
        _check_spelling(column, rows)
    columns.leave(columns.free, "not in --by")
    return columns


def _direction(columns: RunColumns, call: Call, score: RunColumn) -> bool | None:
    """Returns whether less of a score is better: as the call, its name or a column of the study says; None if none does."""
    study = [columns.every[name].values for name in ("direction", "study_direction") if name in columns.every]
    word = state_of(study[0][0]) if study and len(study[0]) == 1 else ""
    says = (call.minimize, score.minimize, {"minimize": True, "maximize": False}.get(word))
    return next((side for side in says if side is not None), None)


def _check_cells(columns: RunColumns, rows: Rows) -> None:
    """Finds the rows that have finished. Raises DataError for a status that is not known, and for a cell of a finished row that
    is no score, size, seed, number of examples or task."""
    allowed = {
        "score": ("a number, or `failed` in a column called status", lambda column: abs(column.numbers) < 1e9),
        "size": ("a number from 0, without signs between its digits", lambda column: column.numbers >= 0),
        "seed": ("a whole number", lambda column: column.numbers % 1 == 0),
        "examples": ("a whole number from 2", lambda column: (column.numbers % 1 == 0) & (column.numbers > 1)),
        "task": ("the name of its task", lambda column: column.filled),
    }
    columns.finished = np.ones(len(rows), bool)
    for column in columns.parts["status"]:
        codes, names = column.codes, terms.FINISHED + terms.STOPPED + terms.FAILED
        states = [state_of(value or terms.FINISHED[0]) for value in column.values]
        for row in np.flatnonzero(np.isin(codes, [at for at, state in enumerate(states) if state not in names])).tolist():
            raise DataError(f"{rows.place(row)}: {column.name}: {column.cells[row]!r} is none of {', '.join(names)}")
        columns.finished = np.isin(codes, [at for at, state in enumerate(states) if state in terms.FINISHED])
    for part, (expected, fits) in allowed.items():
        for column in columns.parts[part]:
            for row in np.flatnonzero(columns.finished & ~fits(column)).tolist():
                got = f"got {column.cells[row]!r}" if has_value(column.cells[row]) else "it is empty"
                raise DataError(f"{rows.place(row)}: {column.name}: {got}; {expected}")


def _check_spelling(column: RunColumn, rows: Rows) -> None:
    numbers, spelled = any(isinstance(value, int | float) for value in column.values), dict[str, str]()
    for at, value in enumerate(column.values):
        first = spelled.setdefault(re.sub(r"[\s_-]", "", value.casefold()), value) if isinstance(value, str) else value
        if first != value or (isinstance(value, str) and numbers and terms.MISWRITTEN.fullmatch(value)):
            row = int(np.flatnonzero(column.codes == at)[0])
            other = f"{first!r} in other rows" if first != value else "numbers in other rows"
            raise DataError(
                f"{rows.place(row)}: {column.name}: got {column.cells[row]!r}, and {other}; write a value in one way"
            )


def _find_settings(columns: RunColumns, rows: Rows) -> dict[str, list[dict[str, Any]]]:
    """Finds the columns that distinguish configurations, those whose names say it, and asks for what is not certain."""
    questions, size, places = dict[str, list[dict[str, Any]]](), columns.part("size"), np.flatnonzero(columns.finished)

    def groups(*chosen: RunColumn) -> int:
        """Counts the combinations of values that the finished rows have."""
        numbers = np.zeros(len(places), np.int64)
        for column in chosen:
            numbers = np.unique(numbers * len(column.values) + column.codes[places], return_inverse=True)[1]
        return int(numbers.max(initial=-1)) + 1

    equal = [column for column in columns.free if groups(column) < 2]
    columns.leave(equal, "equal in all rows")
    tracker = any(column.declared for column in columns.free) and not {"run_id", "number"}.isdisjoint(rows.columns)
    for column in columns.free:
        if why := column.reason or ("about the run" if tracker and not column.declared else ""):
            columns.leave([column], why)
    sure = [column for column in columns.free if column.is_setting or (column.declared and not column.whole)]
    sure += [size] if size is not None and size.is_setting and groups(size) > 1 else []  # a size such as a rank is both
    unsure = [column for column in columns.free if column not in sure and groups(*sure, column) > groups(*sure)]
    settings = [column for column in columns.every.values() if column in sure or column in unsure]
    names = [column for column in columns.every.values() if column.last in ("name", "run_name", "experiment_name")]
    if unsure:
        answers: list[dict[str, Any]] = [{"by": names_of(by)} for by in (sure or names[:1], settings) if by]
        answers += [{"seed": names_of([*columns.parts["seed"], column])} for column in unsure if column.whole]
        questions[f"{names_of(unsure)}: settings, or measured, or what repeats a training?"] = answers
    measured = [column for column in columns.every.values() if columns.left_out.get(column.name) == "measured"]
    rest = [c for c in (*columns.free, *measured) if c not in settings and c.whole and c.last not in terms.MEASURED]
    rest = [column for column in rest if groups(column) > 1 and groups(*settings, column) == groups(*settings)]
    if rest and size is None:
        answers = [*({"size": column.name} for column in rest), {"ignore": names_of(rest)}]
        questions[f"size: is it {names_of(rest)}?"] = answers
    columns.leave([column for column in columns.free if column not in settings], "says no more than the settings")
    columns.parts["settings"] = settings = settings or [column for column in equal if column.is_setting]
    if not settings:
        named = [*names, *([size] if size else [])]
        questions["settings: no column distinguishes configurations"] = [
            {"by": column.name} | ({"size": column.name} if column is size else {}) for column in named
        ]
    elif size is not None and groups(*settings, size) > groups(*settings):
        answers = [{"by": names_of([*settings, size]), "size": size.name}, {"by": names_of(settings)}]
        questions[f"{size.name} differs between rows of a configuration: is a setting missing?"] = answers
    elif not unsure and len(seeds := columns.parts["seed"]) == 1 and groups(*settings) == len(places) > groups(*seeds) > 1:
        answers = [{"by": names_of(by)} for by in ([c for c in settings if groups(c) < len(places)], settings) if by]
        questions["each row is a configuration of its own although seeds repeat"] = answers
    return questions
