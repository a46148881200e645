"""Types of PEFT through whole runs: trained, broken off and resumed, saved, and loaded in a new process to equal outputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from craft.spec import RunSpec
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.training import train_run

pytestmark = pytest.mark.slow

RUNS: dict[str, dict[str, Any]] = {
    "LILY": {"r": 4, "num_B": 2},
    "HIRA": {"r": 4},
    "PVERA": {"r": 16},
    "PEANUT": {"r": 4},
    "WAVEFT": {"n_frequency": 40},
    "FROD": {"sparse_rate": 0.02},
    "SHIRA": {"r": 2},
}
TEXTS = ["a fine film", "not a film at all"]

LOAD = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from craft import load_adapter
found = {}
for folder in sys.argv[2:]:
    model, tokenizer = load_adapter(folder)
    with torch.no_grad():
        found[folder] = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits
save_file(found, sys.argv[1])
""".replace("TEXTS", repr(TEXTS))


def spec_of(model: str, kind: str) -> RunSpec:
    training = {
        "epochs": 2,
        "batch_size": 8,
        "max_length": 24,
        "learning_rate": 1e-2,
        "train_examples": 40,
        "eval_examples": 40,
    }
    parameters = {"peft_type": kind, "config": RUNS[kind], "projections": ["q", "k", "v", "o"]}
    return RunSpec(model=model, task="toy/sentiment", method="peft", parameters=parameters, training=training)


def test_a_new_process_gives_the_outputs_that_were_scored(tiny_bert: str, tmp_path: Path) -> None:
    expected = {}
    for kind in RUNS:
        result = train_run(spec_of(tiny_bert, kind), tmp_path / kind)
        assert result.metrics["score"] >= 0
        model, tokenizer = load_adapter(result.adapter)
        with torch.no_grad():
            expected[str(result.adapter)] = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "HF_HUB_OFFLINE": "1"}
    environment |= {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-c", LOAD, str(tmp_path / "found.safetensors"), *expected]
    subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    found = load_file(tmp_path / "found.safetensors")
    for folder, logits in expected.items():
        assert torch.equal(found[folder], logits), folder
