"""The shipped files of the CRAFT paper's two tables: every published row has its configuration, of the published size."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from craft.methods import METHODS
from orchestrator.plan import make_plan
from orchestrator.sweep import load_sweep

ROOT = Path(__file__).parents[2]
ROBERTA = {"model_type": "roberta", "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "RoBERTa-base": ROBERTA | {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072},
    "RoBERTa-large": ROBERTA
    | {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096, "num_attention_heads": 16},
    "LLaMA2-7B": LLAMA | {"num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000},
    "LLaMA3-8B": LLAMA | {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256},
}
FILES = {
    "RoBERTa-base": ("glue/roberta_base.yaml", "published_glue.csv"),
    "RoBERTa-large": ("glue/roberta_large.yaml", "published_glue.csv"),
    "LLaMA2-7B": ("commonsense/llama2_7b.yaml", "published_commonsense.csv"),
    "LLaMA3-8B": ("commonsense/llama3_8b.yaml", "published_commonsense.csv"),
}


@pytest.mark.slow
@pytest.mark.parametrize("model", FILES)
def test_every_row_of_the_paper_is_planned_without_weights(model: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[model]))
    file, table = FILES[model]
    plan = make_plan(load_sweep(ROOT / "sweeps" / file, [f"model={tmp_path}"]))
    ours = [(METHODS[one.method].title.lower(), one.counts.trainable_parameters) for one in plan.configurations]
    with (ROOT / "dashboards" / "published" / table).open() as stream:
        published = [row for row in csv.DictReader(stream) if row["model"] == model]
    assert published
    for row in published:
        size = int(row["trainable_parameters"])
        exact = row["method"].startswith("CRAFT")
        # Other papers round their counts to one digit, some down.
        near = [
            count for name, count in ours if name == row["method"].lower() and abs(count - size) <= (0 if exact else 0.2 * size)
        ]
        assert near, f"{row['method']} with {size:,} parameters; planned: {ours}"
    assert {one.run.protocol for one in plan.trials} == {"customary"}


def test_published_runs_start_from_mnli_where_they_did() -> None:
    for name in ("roberta_base", "roberta_large"):
        sweep = load_sweep(ROOT / "sweeps" / "glue" / f"{name}.yaml")
        assert sweep.warm_start == dict.fromkeys(("glue/mrpc", "glue/rte", "glue/stsb"), "glue/mnli")
        fresh = {block.method for block in sweep.blocks if not block.warm_start}
        assert "vera" in fresh
        lora = next(block for block in sweep.blocks if block.method == "lora")
        assert lora.warm_start
    base = load_sweep(ROOT / "sweeps" / "glue" / "roberta_base.yaml")
    # LoRA's table 9, in its order: MNLI SST-2 MRPC CoLA QNLI QQP RTE STS-B.
    order = ("mnli", "sst2", "mrpc", "cola", "qnli", "qqp", "rte", "stsb")
    settings = [base.training_for(f"glue/{task}", {}) for task in order]
    assert [one.batch_size for one in settings] == [16, 16, 16, 32, 32, 16, 32, 16]
    assert [one.epochs for one in settings] == [30, 60, 30, 80, 25, 25, 80, 40]
    assert [one.learning_rate for one in settings] == [5e-4, 5e-4, 4e-4, 4e-4, 4e-4, 5e-4, 5e-4, 4e-4]
