"""Many training runs: the sweep file, its plan, the Ray Tune run, the record in MLflow, the Pareto front.

`from orchestrator import plan, run, open_sweep` are sweeps from Python, `judge` is for other trainings
(`orchestrator.commands.api`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.commands.api import judge, open_sweep, plan, run
    from orchestrator.sweepfile.settings import SearcherRow, register_searcher

_API, _ALGORITHMS = "orchestrator.commands.api", "orchestrator.sweepfile.settings"
_PUBLIC = dict.fromkeys(("judge", "open_sweep", "plan", "run"), _API) | dict.fromkeys(
    ("SearcherRow", "register_searcher"), _ALGORITHMS
)
__all__ = ["SearcherRow", "judge", "open_sweep", "plan", "register_searcher", "run"]

for _name in ("plan", "run"):  # an import sets a submodule's name here once, and would later hide the function of that name
    import_module(f"{__name__}.{_name}")
    del globals()[_name]


def __getattr__(name: str) -> Any:
    """Imports the module when one of its functions is asked for, so that the package stays light."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
