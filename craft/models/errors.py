"""What a model can lack: it is not here, or it cannot do what is asked of it."""

from __future__ import annotations

from craft.results import Unavailable


class ModelUnavailable(Unavailable):
    """A model or a part of it is not available here; the message says what is missing and what to do."""


class ModelUnsuited(ValueError):
    """The model is here, and cannot do what the run asks of it."""
