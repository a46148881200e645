"""A saved regression answers in the labels' unit, wherever it is loaded: plain PEFT, merged, served, registered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import craft
from craft.models.files import MINILM, resolve_model
from craft.spec import RunSpec
from craft.trainer.training import train_run
from orchestrator.adapters.merging import write_merged
from orchestrator.serving import Answerer
from orchestrator.tracking.registry import Candidate, register
from tests.word_pairs import word_pairs

ROWS = pd.DataFrame(
    {
        "text": ["the old man waits for the bus", "a girl sings"],
        "text_pair": ["an old man is waiting for a bus", "the committee rejected the plan"],
    }
)
BLOCKED = "import json, sys\nfor name in ('craft', 'orchestrator'): sys.modules[name] = None\n"
LOAD = "from transformers import AutoModelForSequenceClassification as M, AutoTokenizer as T\n"
ASK = """
pairs = {pairs!r}
print(json.dumps([model.eval()(**tokenizer(*pair, return_tensors="pt")).logits.item() for pair in pairs]))
"""


def answers(code: str) -> list[float]:
    """What a new process prints that can import nothing of this project."""
    asked = BLOCKED + LOAD + code + ASK.format(pairs=ROWS.to_numpy().tolist())
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_regression_answers_in_its_unit_wherever_it_is_loaded(
    family: str, tmp_path: Path, uri: str, request: pytest.FixtureRequest
) -> None:
    from mlflow import MlflowClient
    from mlflow.pyfunc import load_model

    base = resolve_model(MINILM) if family == "bert" else request.getfixturevalue("stories")
    training = {"train_examples": 120, "eval_examples": 40, "max_steps": 4, "batch_size": 8, "max_length": 64}
    spec = RunSpec(model=base, method="lora", parameters={"rank": 2}, training=training, **word_pairs(tmp_path, "regression"))
    adapter = train_run(spec, tmp_path / "run").adapter
    loaded, tokenizer = craft.load_adapter(adapter)
    wanted = [loaded(**tokenizer(*pair, return_tensors="pt")).logits.item() for pair in ROWS.to_numpy().tolist()]
    assert all(0 < value < 5 for value in wanted), "numbers from 0 to 5, as the labels are"

    plain = answers(
        "from peft import PeftModel\n"
        f"model = PeftModel.from_pretrained(M.from_pretrained({base!r}, num_labels=1), {str(adapter)!r})\n"
        f"tokenizer = T.from_pretrained({base!r})"
    )
    np.testing.assert_allclose(plain, wanted, atol=1e-4)
    merged = tmp_path / "merged"
    write_merged(adapter, merged)
    np.testing.assert_allclose(
        answers(f"model, tokenizer = M.from_pretrained({str(merged)!r}), T.from_pretrained({str(merged)!r})"), wanted, atol=1e-3
    )
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    trial = client.create_run(client.create_experiment("regression", artifact_location=str(tmp_path / "artifacts")))
    for folder in (adapter, merged):
        served = Answerer(folder).predict(ROWS)
        assert list(served) == ["value"]
        np.testing.assert_allclose(served["value"], wanted, atol=1e-3)
        made = register(uri, trial, Candidate(folder, "pairs", True, ["value"], [], {}))
        source = client.get_model_version("pairs", made.version).source
        np.testing.assert_allclose(load_model(source).predict(ROWS)["value"], wanted, atol=1e-3)
