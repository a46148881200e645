"""Many training runs: the sweep file, its plan, the Ray Tune run, the record in MLflow, the Pareto front.

`from orchestrator import plan, run, open_sweep` are sweeps from Python, `judge` is for other trainings (`orchestrator.api`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.api import judge, open_sweep, plan, run

__all__ = ["judge", "open_sweep", "plan", "run"]


def __getattr__(name: str) -> Any:
    """Imports the module when one of its functions is asked for, so that the package stays light."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("orchestrator.api"), name)


class _Package(ModuleType):
    """Keeps `plan` and `run` functions of the package: importing the modules of these names would put them in their place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
