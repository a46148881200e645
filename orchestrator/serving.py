"""The code that `mlflow models serve` runs for a registered adapter: texts in, the task head's outputs out.

A registered model holds this module's name instead of a pickled object. MLflow imports the module and calls `_load_pyfunc`, so
loading a model runs no code but this package's. Texts are encoded and batched as when the sweep scored the adapter, so the
outputs are the scored ones. This module does not import MLflow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.adapters.merging import RECORD_FILE, read_run, reads_pairs


class Answerer:
    """A loaded adapter, or merged model, in a folder written by `craft-sweeps take`."""

    def __init__(self, folder: Path, base: str | None = None) -> None:
        from craft.models import quiet_libraries
        from craft.models.loading import load_tokenizer
        from craft.scoring.encoding import Collator, longest_input
        from craft.trainer.adapter_folder import load_adapter

        merged = (folder / RECORD_FILE).is_file()
        self.record = read_run(folder)
        if merged:
            from transformers import AutoModelForSequenceClassification

            self.tokenizer = load_tokenizer(str(folder))
            with quiet_libraries():
                loaded = AutoModelForSequenceClassification.from_pretrained(
                    str(folder), use_safetensors=True, trust_remote_code=False
                )
            self.model: Any = loaded.eval()
        else:
            self.model, self.tokenizer = load_adapter(folder, base)
        training = self.record["spec"]["training"]
        self.columns_read = ("text", "text_pair")[: 1 + reads_pairs(self.record)]
        self.length = longest_input(training["max_length"], self.tokenizer, self.model)
        self.batch_size = int(training["eval_batch_size"])
        self.collator = Collator(int(self.tokenizer.pad_token_id))

    @property
    def columns(self) -> list[str]:
        """Names of the outputs: the labels, or `value` for a regression."""
        return list(self.record["labels"]) if self.record["kind"] == "classification" else ["value"]

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Returns the outputs (n, labels) for the rows of a table with the column `text`, and `text_pair` for pairs.

        Raises:
            ValueError: the columns are not those that the adapter was trained on, or a row holds no text in one of them.
        """
        from datasets import Dataset

        from craft.scoring.encoding import encode_split
        from craft.scoring.scorer import predict

        rows = pd.DataFrame(model_input)
        if tuple(name for name in ("text", "text_pair") if name in rows) != self.columns_read:
            column_names = ", ".join(map(str, rows)) or "none"
            raise ValueError(f"the input has the columns {column_names}; the adapter reads {' and '.join(self.columns_read)}")
        if rows.empty:
            return pd.DataFrame(np.empty((0, len(self.columns)), dtype=np.float32), columns=self.columns)
        texts = {name: rows[name].tolist() for name in self.columns_read}
        for name, cells in texts.items():
            for row, cell in enumerate(cells, 1):
                if not isinstance(cell, str) or not cell.strip():
                    raise ValueError(f"row {row}: {name} is {cell!r}; a text is expected")
        split = Dataset.from_dict({**texts, "label": [0] * len(rows)})
        encoded = encode_split(split, self.record["kind"], self.tokenizer, self.length)
        return pd.DataFrame(predict(self.model, encoded, self.collator, self.batch_size), columns=self.columns)


def _load_pyfunc(path: str, model_config: dict[str, Any] | None = None) -> Answerer:
    """Loads a served adapter for MLflow. `model_config` may name another place of the base model as `base`."""
    return Answerer(Path(path), (model_config or {}).get("base"))
