"""Errors as reports, and the exit statuses of all commands."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from orchestrator.results.report import Report
from orchestrator.review.past_sweep import NoSuchSweep
from orchestrator.sweepfile.mistakes import NothingMeets, SweepError
from orchestrator.tracking.uri import TrackingError

GOOD, NO, WRONG, HUNG_UP, STOPPED, LEFT, TERMINATED = 0, 1, 2, 129, 130, 141, 143

EXITS = {
    GOOD: "Done.",
    NO: "The answer is no: trials failed, a session broke off, something would go wrong, or there is nothing of that kind.",
    WRONG: "The call, the sweep file or the data are wrong. Nothing was done.",
    HUNG_UP: "Stopped because its terminal was closed (SIGHUP), with trials left.",
    STOPPED: "Stopped by Ctrl-C. A sweep keeps what has finished; its command with --resume continues it.",
    LEFT: "The reader of stdout has left (`| head`), so nothing more was printed.",
    TERMINATED: "Stopped by SIGTERM, with trials left.",
}
"""Every exit status, with its meaning."""

Kind = Literal["sweep file", "no such sweep", "nothing yet", "store", "system", "stopped", "call"]


class ErrorReport(Report):
    """Why a command did not do what it was asked."""

    report: Literal["error"] = Field("error", description="The kind of this report.")
    kind: Kind = Field(
        description="`sweep file`: a mistake in the file or a --set. `no such sweep`: no sweep has that name or folder. "
        "`nothing yet`: the call is right, but the sweep has no such configuration or trial. `store`: the tracking store "
        "cannot be used. `system`: a file, the disk or the network. `stopped`: by Ctrl-C. `call`: anything else in the call."
    )
    exit_status: int = Field(description="The exit status of the command.")
    message: str = Field(description="What is wrong, where, what is allowed, and what to do.")
    mistakes: list[str] = Field(description="The message in its parts, one for each mistake of a sweep file.")


def error_report(error: BaseException) -> ErrorReport:
    kinds: tuple[tuple[type[BaseException], Kind, int], ...] = (
        (NothingMeets, "nothing yet", NO),
        (SweepError, "sweep file", WRONG),
        (NoSuchSweep, "no such sweep", WRONG),
        (TrackingError, "store", WRONG),
        (OSError, "system", WRONG),
        (KeyboardInterrupt, "stopped", STOPPED),
        (BaseException, "call", WRONG),
    )
    kind, status = next((kind, status) for cause, kind, status in kinds if isinstance(error, cause))
    message = str(error).strip() or ("stopped" if kind == "stopped" else type(error).__name__)
    return ErrorReport(
        kind=kind,
        exit_status=status,
        message=message,
        mistakes=error.lines if isinstance(error, SweepError) else [message],
    )
