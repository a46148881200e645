"""CRAFT: cross-layer rank adaptation by a frozen Tucker decomposition, as a PEFT method.

One training run lives here: the method and its baselines (`craft.methods`), the tasks (`craft.tasks`), the trainer
(`craft.trainer.training`). Nothing in this package knows Ray or MLflow.

Importing `craft` is cheap: torch, transformers and PEFT are loaded on first use of a public name, so that a sweep file can
be checked in well under a second. The method is registered with PEFT as soon as both packages are imported, in either
order; from then on `PeftModel.from_pretrained` knows what a CRAFT adapter is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from craft.audit.audit import audit_adapter
    from craft.audit.folder import Data
    from craft.factors.hosvd import TuckerFactors, hosvd
    from craft.trainer.adapter_folder import load_adapter
    from craft.tuners.craft.config import CraftConfig
    from craft.tuners.craft.model import CraftModel, rank_scaled_adamw

__version__ = "0.1.0"
__all__ = ["CraftConfig", "CraftModel", "Data", "TuckerFactors", "audit_adapter", "hosvd", "load_adapter", "rank_scaled_adamw"]

_PUBLIC = {
    "Data": "craft.audit.folder",
    "audit_adapter": "craft.audit.audit",
    "CraftConfig": "craft.tuners.craft.config",
    "CraftModel": "craft.tuners.craft.model",
    "TuckerFactors": "craft.factors.hosvd",
    "hosvd": "craft.factors.hosvd",
    "load_adapter": "craft.trainer.adapter_folder",
    "rank_scaled_adamw": "craft.tuners.craft.model",
}

TUNERS: dict[str, tuple[str, str, str]] = {
    "CRAFT": ("craft.tuners.craft.model", "CraftConfig", "CraftModel"),
    "MILORA": ("craft.tuners.low_rank", "MiloraConfig", "MiloraModel"),
    "LOTR": ("craft.tuners.low_rank", "LotrConfig", "LotrModel"),
    "SUPERLORA": ("craft.tuners.low_rank", "SuperLoraConfig", "SuperLoraModel"),
    "LORETTA": ("craft.tuners.bottleneck", "LorettaConfig", "LorettaModel"),
    "BOTTLENECK": ("craft.tuners.bottleneck", "BottleneckConfig", "BottleneckModel"),
}
"""The methods this project adds to PEFT: type -> module, configuration class, tuner class. A row of METHODS names its type."""


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'craft' has no attribute {name!r}")


def _register(_peft: Any) -> None:
    import_module("craft.tuners.joint").register()


wrapt.register_post_import_hook(_register, "peft")
