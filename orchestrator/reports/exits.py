"""The exit statuses of all commands."""

from __future__ import annotations

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
