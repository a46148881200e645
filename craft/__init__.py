"""CRAFT: cross-layer rank adaptation by a frozen Tucker decomposition, as a PEFT method.

One training run lives here: the method and its baselines (`craft.methods`), the tasks (`craft.tasks`), the trainer
(`craft.training`). Nothing in this package knows Ray or MLflow.

Importing `craft` is cheap: torch, transformers and PEFT are loaded on first use of a public name, so that a sweep file can
be checked in well under a second. The method is registered with PEFT as soon as both packages are imported, in either
order; from then on `PeftModel.from_pretrained` knows what a CRAFT adapter is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from craft.adapters import load_adapter
    from craft.config import CraftConfig
    from craft.model import CraftModel
    from craft.tucker import TuckerFactors, hosvd

__version__ = "0.1.0"
__all__ = ["CraftConfig", "CraftModel", "TuckerFactors", "hosvd", "load_adapter"]

_PUBLIC = {
    "CraftConfig": "craft.config",
    "CraftModel": "craft.model",
    "TuckerFactors": "craft.tucker",
    "hosvd": "craft.tucker",
    "load_adapter": "craft.adapters",
}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'craft' has no attribute {name!r}")


def _register(_peft: Any) -> None:
    import_module("craft.registration").register()


wrapt.register_post_import_hook(_register, "peft")
