"""Reads runs straight from the file of an SQLite tracking store: 5,000 of them in half a second.

MLflow's own API takes about 3 ms a run, which is 15 s for such a sweep before a page can draw all of it. The tables are
MLflow's and may change with its version, so they are checked first. Where they differ from those known here, and for every
store that is not an SQLite file, `dashboards.store.Store` asks the API instead. A test checks that both read the same. The file
is opened for reading only.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards.frames import NAN, RunRow

TABLES = {
    "experiments": {"experiment_id", "name", "lifecycle_stage"},
    "runs": {"run_uuid", "status", "start_time", "end_time", "lifecycle_stage", "experiment_id"},
    "params": {"run_uuid", "key", "value"},
    "tags": {"run_uuid", "key", "value"},
    "latest_metrics": {"run_uuid", "key", "value", "is_nan"},
    "metrics": {"run_uuid", "key", "value", "is_nan", "step", "timestamp"},
}
BUSY_S = 20.0  # how long to wait for a writer that holds the file


@dataclass(frozen=True)
class Wanted:
    """Which runs to read: those of a kind, those still running, those that started or ended since a moment.

    A run that meets any of the given conditions is wanted. Moments are milliseconds since 1970.
    """

    kind: str | None = None
    running: bool = False
    started_since: int | None = None
    ended_since: int | None = None

    def filters(self) -> list[str]:
        """The same as MLflow filters, one for each condition, because MLflow's filter language has no `or`."""
        found = [f"tags.`craft.kind` = '{self.kind}'"] if self.kind else []
        found += ["attributes.status = 'RUNNING'"] if self.running else []
        found += [f"attributes.start_time >= {self.started_since}"] if self.started_since is not None else []
        return found + ([f"attributes.end_time >= {self.ended_since}"] if self.ended_since is not None else [])

    def condition(self) -> tuple[str, list[Any]]:
        """The same as an SQL condition on `runs r`, with the values of its placeholders."""
        parts: list[str] = []
        values: list[Any] = []
        if self.kind:
            parts.append("r.run_uuid in (select run_uuid from tags where key = 'craft.kind' and value = ?)")
            values.append(self.kind)
        if self.running:
            parts.append("r.status = 'RUNNING'")
        for name, since in (("start_time", self.started_since), ("end_time", self.ended_since)):
            if since is not None:
                parts.append(f"r.{name} >= ?")
                values.append(since)
        return " or ".join(parts) or "1", values


class StoreFile:
    """An open SQLite store; safe to use from several threads."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> StoreFile | None:
        """The store in the file; None where the file lacks a table or column that is read here."""
        address = f"{path.absolute().as_uri()}?mode=ro"
        try:
            connection = sqlite3.connect(address, uri=True, timeout=BUSY_S, check_same_thread=False, isolation_level=None)
            for table, columns in TABLES.items():
                if not columns <= {str(row[1]) for row in connection.execute(f"pragma table_info({table})")}:
                    connection.close()
                    return None
        except sqlite3.Error:
            return None
        return cls(connection)

    def version(self) -> int:
        """A number that changes whenever anybody else has written to the file."""
        with self._lock:
            return int(self._connection.execute("pragma data_version").fetchone()[0])

    def experiments(self) -> dict[str, str]:
        """Names by id."""
        rows = self._rows("select experiment_id, name from experiments where lifecycle_stage = 'active'", [])
        return {str(one): name for one, name in rows}

    def runs(self, experiment_ids: Sequence[str], wanted: Wanted) -> list[RunRow]:
        """The wanted runs of these experiments, all read at one moment."""
        condition, values = wanted.condition()
        marks = ",".join("?" * len(experiment_ids))
        of_these = f"from runs r where r.experiment_id in ({marks}) and r.lifecycle_stage = 'active' and ({condition})"
        given = [*map(int, experiment_ids), *values]
        parts: dict[str, dict[str, dict[str, Any]]] = {"params": {}, "tags": {}, "latest_metrics": {}}
        with self._lock:
            self._connection.execute("begin")
            try:
                runs = self._connection.execute(
                    f"select r.run_uuid, r.experiment_id, r.status, r.start_time, r.end_time {of_these}", given
                ).fetchall()
                for table, by_run in parts.items():
                    value = "case when is_nan then null else value end" if table == "latest_metrics" else "value"
                    by_run.update({run[0]: {} for run in runs})
                    query = f"select run_uuid, key, {value} from {table} where run_uuid in (select r.run_uuid {of_these})"
                    for run_id, key, content in self._connection.execute(query, given):
                        by_run[run_id][key] = content
            finally:
                self._connection.execute("commit")
        return [
            RunRow(
                run_id=run_id,
                experiment_id=str(experiment_id),
                status=status,
                started=started,
                ended=ended,
                tags=parts["tags"][run_id],
                params=parts["params"][run_id],
                metrics={key: NAN if value is None else value for key, value in parts["latest_metrics"][run_id].items()},
            )
            for run_id, experiment_id, status, started, ended in runs
        ]

    def histories(self, runs: Iterable[str], metric: str) -> dict[str, list[tuple[int, float]]]:
        """Run id -> [(step, value), ...] in order of steps. Where a step has two values, the later one counts."""
        wanted = list(runs)
        found: dict[str, dict[int, float]] = {run: {} for run in wanted}
        for start in range(0, len(wanted), 500):
            some = wanted[start : start + 500]
            marks = ",".join("?" * len(some))
            query = (
                "select run_uuid, step, case when is_nan then null else value end from metrics "
                f"where key = ? and run_uuid in ({marks}) order by timestamp"
            )
            for run, step, value in self._rows(query, [metric, *some]):
                found[run][step] = NAN if value is None else value
        return {run: sorted(points.items()) for run, points in found.items()}

    def _rows(self, query: str, values: list[Any]) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()
