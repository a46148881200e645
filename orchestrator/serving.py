"""The name by which models in a registry are loaded: `orchestrator.adapters.serving`."""

from orchestrator.adapters.serving import Answerer as Answerer
from orchestrator.adapters.serving import _load_pyfunc as _load_pyfunc
