"""Methods that bring their own optimizer, through whole runs: resumed and undisturbed ones agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from craft.spec import RunSpec
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.checkpoint import find_newest_checkpoint
from craft.trainer.training import train_run
from tests.craft.trainer.same import interrupted


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("adalora", {"init_rank": 4, "target_rank": 2}),
        ("galore", {"rank": 4, "interval": 5}),
    ],
)
def test_a_resumed_run_ends_where_an_undisturbed_one_does(
    tiny_bert: str, method: str, parameters: dict[str, Any], tmp_path: Path
) -> None:
    training = {
        "epochs": 2,
        "batch_size": 8,
        "max_length": 24,
        "learning_rate": 5e-3,
        "train_examples": 40,
        "eval_examples": 40,
    }
    spec = RunSpec(model=tiny_bert, task="toy/sentiment", method=method, parameters=parameters, training=training)
    whole = train_run(spec, tmp_path / "whole")
    again = train_run(spec, tmp_path / "again", resume_from=interrupted(spec, tmp_path / "cut"))
    assert again.metrics == whole.metrics
    assert whole.counts.optimizer_bytes, "what the optimizer held is measured"
    # Broken off after its last step there is no optimizer any more, and still its bytes are those that were there.
    ended = train_run(spec, tmp_path / "ended", resume_from=find_newest_checkpoint(tmp_path / "whole"))
    assert ended.metrics == whole.metrics
    assert {run.counts.optimizer_bytes for run in (whole, again, ended)} == {whole.counts.optimizer_bytes}
    one, tokenizer = load_adapter(tmp_path / "whole" / "adapter")
    other, _ = load_adapter(tmp_path / "again" / "adapter")
    words = tokenizer(["a fine film", "not a film at all"], padding=True, return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(one(**words).logits, other(**words).logits)
