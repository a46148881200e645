"""Whether a machine of a trial is about to be taken away, as the cluster's head knows it.

    ray drain-node                      \\
    SIGTERM to `ray start --block`       >--->  head  --asked every 2 s-->  Notice in each trial's process  -->  `Leave`
    an autoscaler before it terminates  /

Slurm and Kubernetes end a machine's processes by SIGTERM, for which Ray (2.60) drains the machine first. Ray starts nothing new
on a machine that drains, and leaves what runs there alone until its deadline.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray

from orchestrator.worker.crash import TAKEN

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
ANSWER_SECONDS = 10.0


@contextmanager
def drain_notice() -> Iterator[Callable[[], str | None]]:
    """Gives a function that says at once why the trial of this process has to leave its machine, or None while it may stay.

    The head is asked in a thread of its own: training never waits for it, and a head that does not answer says nothing.
    """
    over, drained = threading.Event(), threading.Event()
    machine = ray.get_runtime_context().get_node_id()
    client: Any = ray._private.worker.global_worker.gcs_client  # type: ignore[attr-defined]

    def watch() -> None:
        while not over.is_set() and not drained.is_set():
            try:
                if machine in client.get_draining_nodes(timeout=ANSWER_SECONDS):
                    drained.set()
            except Exception as error:  # of many kinds while the head is away
                log.info("the cluster's head does not say which machines are drained: %s", error)
            over.wait(POLL_SECONDS)

    threading.Thread(target=watch, name="drain-notice", daemon=True).start()
    try:
        yield lambda: TAKEN if drained.is_set() else None
    finally:
        over.set()
