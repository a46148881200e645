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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, TypeAdapter, ValidationError

from craft.disk import replacing
from orchestrator.record.folder import SweepFolder
from orchestrator.record.overrides import Override
from orchestrator.state.events import PLAIN, Verb
from orchestrator.sweepfile.sweep import Sweep

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
        verb: what is asked for.
        who: user@machine.
        time: when it was written, in seconds since 1970.
        trial: the key of the trial that `stop` or `retry` is about.
        sweep: with `apply`: the sweep file, checked, with every default written out.
        file: the path of that file.
        overrides: what flags change in it.
    """

    __pydantic_config__: ClassVar = PLAIN
    name: Shown
    verb: Verb | Literal["apply"]
    who: Shown
    time: float
    trial: Shown | None = None
    sweep: dict[str, Any] = field(default_factory=dict)
    file: Shown = ""
    overrides: list[Override] = field(default_factory=list)

    def write(self, folder: SweepFolder) -> None:
        """Hands the request in."""
        folder.requests.mkdir(exist_ok=True)
        with replacing(self._file(folder)) as aside:
            aside.write_text(json.dumps(asdict(self)), encoding="utf-8")

    def remove(self, folder: SweepFolder) -> None:
        """Removes the request, answered or withdrawn."""
        self._file(folder).unlink(missing_ok=True)

    def refuse(self, folder: SweepFolder, why: str) -> None:
        """Removes the request, and leaves the reason to the person who has asked."""
        _refuse(self._file(folder), why)

    def is_there(self, folder: SweepFolder) -> bool:
        """Returns whether the request's file is there: it is not answered yet, or it was and will be removed."""
        return self._file(folder).exists()

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
    """Returns a request of this process's user."""
    return Request(_new_name(), verb, _whoami(), time.time(), trial)


def apply_request(sweep: Sweep, file: Path, overrides: Sequence[Override]) -> Request:
    """Returns a request that another sweep file counts from now on."""
    plain, path = sweep.model_dump(mode="json"), str(file.absolute())
    return Request(_new_name(), "apply", _whoami(), time.time(), sweep=plain, file=path, overrides=list(overrides))


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


def _whoami() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
