"""The names of tags that a sweep's runs have in MLflow: `orchestrator.review.desired_run` writes them, all others read them."""

from __future__ import annotations

PREFIX = "craft."

KIND = "craft.kind"
SWEEP_KIND, CONFIGURATION_KIND, TRIAL_KIND = "sweep", "configuration", "trial"
KEY, SWEEP, SWEEP_ID = "craft.key", "craft.sweep", "craft.sweep_id"
"""A run is found by its kind, its key and the id of its sweep."""

CONFIGURATION, LABEL, METHOD, PROTOCOL = "craft.configuration", "craft.label", "craft.method", "craft.protocol"
TASK, SEED, TUNES, TRANSFERRED = "craft.task", "craft.seed", "craft.tunes", "craft.transferred"
ADDED = "craft.added"
"""Why a trial or a configuration was added while the sweep ran, in words."""

STATUS, COMPLETE, ERROR, NOTES = "craft.status", "craft.complete", "craft.error", "craft.notes"
ON_FRONT, MAY_BE_ON_FRONT, ENOUGH, KNEE = "craft.on_front", "craft.may_be_on_front", "craft.enough", "craft.knee"
UNDERWAY = "craft.underway"
"""JSON: `left` (seconds), `doing`, and `time` (milliseconds since 1970) of the driver's last report."""
ASKED = "craft.asked"
"""`false` of a trial or configuration that the sweep file does not ask for any more."""
ANSWER = "craft.answer"
FACT = "craft.fact."
"""Begins the tag of each fact of a trial's result."""
NOW = "craft.now."
"""Begins the tag of a parameter that has changed: MLflow keeps a parameter's first value."""
NONFINITE = "craft.nonfinite."
"""Begins the tag of a metric that was infinite or no number, which MLflow cannot hold."""

NOTE, RUN_NAME, PARENT = "mlflow.note.content", "mlflow.runName", "mlflow.parentRunId"
