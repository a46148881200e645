"""toy: five small tasks in the shape of GLUE, made by code from a seeded grammar. No download."""

from __future__ import annotations

from craft.tasks import Task

TASKS: tuple[Task, ...] = ()
