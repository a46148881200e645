"""Keeps progress bars and advice of transformers and PEFT off the screen while models are loaded."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silences what transformers and PEFT print about healthy runs (load reports, bars, new heads) until the block ends."""
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    root_level = logging.getLogger("peft").level
    logging.getLogger("peft").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(transformers|peft|accelerate|torch)(\.|$)")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        logging.getLogger("peft").setLevel(root_level)
        if bars:
            transformers_logging.enable_progress_bar()
