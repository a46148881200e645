"""What a step costs on the GPU: its memory next to the plan, and where the host waits for it."""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from craft.spec import RunSpec
from craft.trainer.counting import estimated_memory
from craft.trainer.training import train_run
from tests.craft.pretended_gpu.test_methods import COUNTED, FEW, spec_of
from tests.craft.tasks.tickets import write
from tests.craft.trainer.test_counting import PARAMETERS
from tests.gpu.conftest import Figure

GIB = 2**30
SHAPE = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
TEXTS, TOKENS = 16, 384


@pytest.fixture(scope="module")
def llama(tiny_llama: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two layers of LLaMA3-8B's shape with the vocabulary of bytes, weights random."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if not torch.cuda.is_available():
        pytest.skip("needs 1 GPU, 0 here")
    folder = tmp_path_factory.mktemp("llama3-8b")
    shutil.copytree(tiny_llama, folder, dirs_exist_ok=True)
    config = LlamaConfig.from_pretrained(tiny_llama)
    config.update(SHAPE | {"initializer_range": 0.02})
    with torch.device("cuda"):
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def long_texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows that are longer than `TOKENS` bytes, so that every batch is as long as planned."""
    texts = [(f"row {at}: {'yes ' * 120 if at % 2 else 'no ' * 160}", "odd" if at % 2 else "even") for at in range(96)]
    rows = [{"text": text, "label": label} for text, label in texts]
    return str(write(tmp_path_factory.mktemp("rows") / "rows.csv", rows))


@pytest.mark.gpus(1)
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("method", [*PARAMETERS, "full"])
def test_a_step_fits_its_plan(method: str, precision: str, llama: str, long_texts: str, tmp_path: Path, figure: Figure) -> None:
    settings = {"precision": precision, "batch_size": TEXTS, "max_length": TOKENS, "max_steps": 3, "evaluate_every": "end"}
    settings |= {"head_start": "random", "learning_rate": 1e-5}
    data: Any = {"custom": {"rows": {"train": long_texts, "text": "text", "label": "label"}}}
    parameters = PARAMETERS.get(method, {})
    spec = RunSpec(model=llama, task="custom/rows", method=method, parameters=parameters, training=settings, data=data)
    peak = train_run(spec, tmp_path).counts.peak_memory_bytes
    assert peak
    planned = estimated_memory(spec)
    figure(f"{planned / GIB:.2f} GiB planned, {peak / GIB:.2f} at most allocated")
    assert 0.95 * peak <= planned <= 1.5 * peak


@pytest.mark.gpus(1)
@pytest.mark.parametrize("method", ["craft", "lora"])
def test_a_step_waits_where_it_is_logged_alone(method: str, tiny_bert: str, tmp_path: Path, figure: Figure) -> None:
    """As on the pretended GPU, counted by CUDA's own watch."""
    counts = []
    for steps in COUNTED:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                train_run(spec_of(tiny_bert, method, **FEW, max_steps=steps), tmp_path / str(steps))
            finally:
                torch.cuda.set_sync_debug_mode("default")
        counts.append(Counter(f"{item.filename}:{item.lineno}" for item in said if "synchroniz" in str(item.message)))
    assert counts[0], "the loading of a run waits: the watch is on"
    counts[1].subtract(counts[0])
    more = {line.rpartition("/")[2]: count / (COUNTED[1] - COUNTED[0]) for line, count in counts[1].items() if count > 0}
    figure(f"waits a step: {more}")
    assert sum(more.values()) <= 2, more
