"""`Request`: what a person asks of a sweep's driver, as a file in `runs/NAME/requests`.

    apply, pause, continue, retry, stop  -->  ID.json  -->  driver, between two events  -->  an event in the log
                                                                └── refused -->  ID.refused

The event names the request, so that it is answered once, even if the driver is killed before the file is removed. A request
that no driver has answered is answered by the next one. A file that is no request is refused as soon as it is read.
"""

from __future__ import annotations

import getpass
import json
import logging
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from craft.disk import replacing
from orchestrator.driver.change import check_change, find_change
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.record.events import PLAIN, Applied, Requested, Verb
from orchestrator.record.folder import SweepFolder
from orchestrator.record.manifest import describe_plan, record_in, write_effective
from orchestrator.record.options import Options
from orchestrator.record.state import Entry, State
from orchestrator.results.report import Report
from orchestrator.search.stages import make_strategy
from orchestrator.sweepfile.load import check
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.plain_yaml import read_yaml
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tools.secrets import redacted

logger = logging.getLogger(__name__)


def _check_shown(text: str) -> str:
    if not text.isprintable():
        raise ValueError("characters that move a terminal's cursor are not allowed")
    return text


Shown: TypeAlias = Annotated[str, AfterValidator(_check_shown)]
"""A text that goes to the terminal."""


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        name: names the request and its file; requests are answered in the order of their names.
        who: user@machine.
        sweep: with `apply`: the sweep file, checked, with every default written out and without passwords.
        written: what the file says, without defaults and changes.
    """

    __pydantic_config__: ClassVar = PLAIN
    name: Shown
    verb: Verb | Literal["apply"]
    who: Shown
    trial: Shown | None = None
    sweep: dict[str, Any] = field(default_factory=dict)
    file: Shown = ""
    written: Any = None
    changes: list[str] = field(default_factory=list)

    def write(self, folder: SweepFolder) -> None:
        folder.requests.mkdir(exist_ok=True)
        with replacing(self._file(folder)) as aside:
            aside.write_text(json.dumps(asdict(self)), encoding="utf-8")

    def remove(self, folder: SweepFolder) -> None:
        self._file(folder).unlink(missing_ok=True)

    def refuse(self, folder: SweepFolder, why: str) -> None:
        """Removes the request, and leaves the reason to the person who has asked."""
        _refuse(self._file(folder), why)

    def is_there(self, folder: SweepFolder) -> bool:
        """Returns whether the request's file is there: it is not answered yet, or it was and will be removed."""
        return self._file(folder).exists()

    @property
    def is_out_of_date(self) -> bool:
        try:
            return bool(redacted(read_yaml(Path(self.file)).written) != self.written)
        except SweepError:  # it is not there any more, or half-written
            return False

    def answer(
        self, folder: SweepFolder, plan: Plan, state: State, options: Options, *, first: bool = False
    ) -> tuple[Applied | Requested, Plan, Options] | None:
        """Returns the event that a driver has to record, and the plan and the options that it has to follow from then on; None
        if the file is the same. Raises an error of any kind where the request is to be refused.

        Args:
            first: whether the driver begins, so that the request may be out of date.
        """
        if self.verb != "apply":
            keys = affected(state, self.verb, self.trial)
            return Requested(request=self.name, who=self.who, verb=self.verb, keys=keys), plan, options
        if first and self.is_out_of_date:
            raise SweepError([f"{self.file} was edited again before a driver took it; apply it again"])
        new = record_in(self._planned(plan), state.sweep.tracking.uri)
        change = find_change(plan.sweep, new, state)
        same = Path(options.sweep).absolute() == Path(self.file)
        options = replace(options, sweep=options.sweep if same else self.file, changes=tuple(self.changes), resume=True)
        # Before the event: a driver that is killed in between finds the request, and a difference in the trials.
        options.remember(folder, self.written)
        if not change:
            self.remove(folder)
            return None
        write_effective(folder, new.sweep)
        again, plain = options.again(), describe_plan(new)
        return Applied(request=self.name, who=self.who, difference=change.lines, again=again, **plain), new, options

    def _planned(self, plan: Plan) -> Plan:
        """Returns the plan of its file, which is to take the place of `plan`."""
        sweep, mistakes = check(dict(self.sweep))
        if sweep is None or mistakes:
            raise SweepError([f"{self.file}: {mistake}" for mistake in mistakes])
        check_change(plan.sweep, sweep)
        new = make_plan(sweep, plan.planner.of(sweep))
        make_strategy(new)  # its errors belong to the request, too
        return new

    def take_refusal(self, folder: SweepFolder) -> str | None:
        """Returns why the request was refused, and removes that answer; None if it was not refused."""
        file = self._file(folder).with_suffix(".refused")
        try:
            why = file.read_text(encoding="utf-8")
        except OSError:
            return None
        file.unlink(missing_ok=True)
        return why

    def _file(self, folder: SweepFolder) -> Path:
        return folder.requests / f"{self.name}.json"


_REQUEST = TypeAdapter(Request)


def new_request(verb: Verb, trial: str | None = None) -> Request:
    return Request(_new_name(), verb, whoami(), trial)


def apply_request(sweep: Sweep, options: Options) -> Request:
    plain, written, changes = redacted([sweep.model_dump(mode="json"), sweep.written, options.changes])
    path = str(Path(options.sweep).absolute())
    return Request(_new_name(), "apply", whoami(), sweep=plain, file=path, written=written, changes=changes)


def pending(folder: SweepFolder) -> list[Request]:
    """Returns the requests that wait, in their order, and refuses files that are no requests."""
    try:
        files = sorted(file for file in folder.requests.iterdir() if file.suffix == ".json" and file.name[0] != ".")
    except OSError:
        return []
    return [request for file in files if (request := _read(file)) is not None]


def _read(file: Path) -> Request | None:
    try:
        request = _REQUEST.validate_json(file.read_bytes())
        if request.name == file.stem:
            return request
        why = f"name: {request.name} is not the name of the file"
    except OSError:  # it was withdrawn, or is read again at the next look
        return None
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        why = f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}".removeprefix(": ")
    logger.warning("%s is removed, because it is no request (%s)", file, why)
    _refuse(
        file,
        f"{file.name} is no request ({why}); write requests with craft-sweeps apply, pause, continue, stop or retry",
    )
    return None


def _refuse(file: Path, why: str) -> None:
    with suppress(OSError), replacing(file.with_suffix(".refused")) as aside:
        aside.write_text(why, encoding="utf-8")
    with suppress(OSError):
        file.unlink()


def _new_name() -> str:
    return f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"


def whoami() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


SHORTEST = 4
"""Digits of a key that may name a trial."""
NAMED = 5


def affected(state: State, verb: Verb, name: str | None) -> list[str]:
    """Returns the keys of the trials that a request stops or lets run again; none for `pause` and `continue`.

    A training takes along what is cut from its adapter. A cut whose training failed takes this along.
    """
    if verb not in _MAY:
        return []
    entry = _find(state, verb, name or "")
    training, family = state.training_of(entry.trial), state.cuts_of(entry.trial)
    if training is not entry and verb == "retry" and not training.finished:
        family.append(training)
    keys = [other.key for other in (entry, *family) if _MAY[verb](other)]
    if not keys:
        how = entry.result.status if entry.ended and entry.result is not None else entry.phase
        raise SweepError([f"{verb} {_said(entry)}: it is {how}; {verb} is for a trial that {_RULE[verb]}"])
    return keys


_MAY = {"stop": lambda entry: not entry.ended, "retry": lambda entry: entry.ended and not entry.finished}
_RULE = {"stop": "runs or waits", "retry": "failed or was stopped"}


def _find(state: State, verb: Verb, name: str) -> Entry:
    entries = state.requested or [*state.entries.values()]
    exact = [entry for entry in entries if name in (entry.key, entry.trial.name)]
    begun = [entry for entry in entries if len(name) >= SHORTEST and entry.key.startswith(name)]
    matches = exact or begun
    if len(matches) == 1:
        return matches[0]
    candidates = matches or [entry for entry in entries if _MAY[verb](entry)]
    listed = [f"  {_said(entry)}" for entry in candidates[:NAMED]]
    more = [f"  and {len(candidates) - NAMED} more"] if len(candidates) > NAMED else []
    wrong = f"{name!r} names {len(matches)} trials" if matches else f"the sweep {state.name} has no trial {name!r}"
    raise SweepError([f"{verb}: {wrong}. " + ("Those are:" if listed else f"No trial of it {_RULE[verb]}."), *listed, *more])


def _said(entry: Entry) -> str:
    return f"{entry.key} ({entry.trial.name})"


class RequestReport(Report):
    """What came of `pause`, `continue`, `stop` or `retry`."""

    report: Literal["request"] = Field("request", description="The kind of this report.")
    sweep: str = Field(description="The sweep's name.")
    verb: Verb = Field(description="What was asked for.")
    done: bool = Field(description="Whether a driver has done it. False if none runs: the next session does it first.")
    trials: list[str] = Field([], description="The keys of the trials that are stopped, or run again.")
    text: str = Field(description="What came of it, as the terminal shows it.")
    command: str = Field(description="The command that continues the sweep, where no driver runs. Empty if there is none.")
