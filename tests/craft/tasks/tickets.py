"""A task of the user's own: tickets in files of every format."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

from craft.settings import CustomTask, DataSettings
from craft.tasks import find_task

ROWS = [
    {"title": f"title, {row}", "body": f'a "body"\n{row}', "queue": ("sales", "help", "spam")[row % 3]} for row in range(60)
]


def write(path, rows):
    if path.suffix == ".csv":
        import csv

        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def tickets(path, **given):
    block = {"train": str(path), "text": ["title", "body"], "label": "queue"} | given
    data = DataSettings(custom={"tickets": CustomTask(**block)})
    return find_task("custom/tickets", data), data
