"""CRAFT: cross-layer rank adaptation by a frozen Tucker decomposition, as a PEFT method.

One training run lives here: the method and its baselines (`craft.methods`), the tasks (`craft.tasks`), the trainer
(`craft.trainer.training`). Nothing in this package knows Ray or MLflow.

Importing `craft` is cheap: torch, transformers and PEFT are loaded on first use of a public name, so that a sweep file can
be checked in well under a second. The method is registered with PEFT as soon as both packages are imported, in either
order; from then on `PeftModel.from_pretrained` knows what a CRAFT adapter is.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from craft.config import CraftConfig
    from craft.factors.hosvd import TuckerFactors, hosvd
    from craft.model import CraftModel
    from craft.trainer.adapter_folder import load_adapter

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


# Where PEFT is first imported by one of the method's own modules, that module is not there yet for the method to be put
# together: it is registered once the module is.
_METHOD = ("config", "projections", "stack", "placing", "fingerprint", "layer", "export", "model", "registration")
_TUNERS = ("joint", "milora", "lotr", "superlora", "loretta", "bottleneck")


def _register(_module: Any) -> None:
    if "peft" not in sys.modules:
        return
    try:
        registration = import_module("craft.registration")
        if hasattr(registration, "register"):  # it may be the one that imports PEFT, and have got no further
            registration.register()
    except ImportError as error:
        if "partially initialized module" not in str(error):
            raise


for _name in ("peft", *(f"craft.{name}" for name in _METHOD), *(f"craft.tuners.{name}" for name in _TUNERS)):
    wrapt.register_post_import_hook(_register, _name)
