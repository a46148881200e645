"""`craft-sweeps train`: what its flags become, its exit statuses, and what it says of mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from craft.train import CallError
from tests.craft.calls import run_of, train

TINY = ["--epochs", "1", "--batch-size", "8"]
TINY += ["--set", "train_examples=24", "--set", "eval_examples=16", "--set", "max_length=16"]


def test_flags_and_set_become_the_run() -> None:
    call = "--task glue/rte --method craft --ranks all 8 16 --projections q,k --dropout 0.1 --learning-rate 3e-3 --seed 4"
    spec = run_of(*call.split(), "--set", "head_learning_rate=1e-4", "--set", "scaling=2")
    assert spec.parameters["ranks"] == ["all", 8, 16]
    assert spec.parameters["projections"] == ["q", "k"]
    assert (spec.parameters["dropout"], spec.parameters["scaling"]) == (0.1, 2.0)
    assert (spec.training.learning_rate, spec.training.head_learning_rate, spec.seed) == (3e-3, 1e-4, 4)


def test_a_custom_task_is_given_under_data(tmp_path: Path) -> None:
    block = "data.custom.mine={train: t.csv, text: [a, b], label: y}"
    spec = run_of("--task", "custom/mine", "--set", block, "--set", "data.search_fraction=0.2")
    assert spec.data.custom["mine"].text == ("a", "b")
    assert spec.data.search_fraction == 0.2


def test_other_spellings_of_a_parameter_are_known() -> None:
    spec = run_of("--task", "glue/rte", "--method", "lora", "--set", "r=3", "--set", "lora_alpha=6")
    assert (spec.parameters["rank"], spec.parameters["alpha"]) == (3, 6.0)


def test_a_type_of_peft_takes_its_config_whole_or_key_by_key() -> None:
    call = ["--task", "glue/rte", "--method", "peft", "--set", "peft_type=LILY", "--projections", "q k"]
    whole = run_of(*call, "--set", "config={r: 4, num_B: 3}")
    assert whole.parameters == {"peft_type": "LILY", "config": {"r": 4, "num_B": 3}, "projections": ["q", "k"]}
    assert run_of(*call, "--set", "config.r=4", "--set", "config.num_B=3") == whole
    with pytest.raises(CallError, match=r"unknown key 'rr' of PEFT's LilyConfig\. Did you mean 'r'"):
        run_of(*call, "--set", "config.rr=4")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (["--task", "toy/sentimant"], "Did you mean 'toy/sentiment'"),
        (["--task", "toy/sentiment", "--set", "bach_size=3"], "Did you mean 'batch_size'?"),
        (["--task", "toy/sentiment", "--set", "batch_size"], "expected KEY=VALUE"),
        (["--task", "toy/sentiment", "--set", "batch_size=[1"], "cannot be read as YAML"),
        (["--task", "toy/sentiment", "--set", "batch_size=many"], "training.batch_size"),
        (
            ["--task", "toy/sentiment", "--method", "lora", "--set", "rank=true"],
            "rank: Input should be a whole number, not",
        ),
        (["--task", "toy/sentiment", "--set", "max_length=1"], "max_length 1 leaves no room"),
        (["--task", "toy/sentiment", "--method", "lora", "--ranks", "all", "8", "8"], "unknown key 'ranks'"),
        (["--task", "toy/sentiment", "--ranks", "7", "8", "8"], "r1"),
        (["--task", "toy/sentiment", "--model", "./no-model-here"], "does not exist"),
        (["--task", "glue/rte", "--data-root", "./no-data-here"], "no-data-here"),
        (["--task", "custom/x", "--set", "data.custom.x={train: none.csv, text: a, label: b}"], "none.csv"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(
    call: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(*call) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_is_told_before_torch_is_imported() -> None:
    code = (
        "import sys; from orchestrator.commands.app import main; status = main(['train', '--task', 'toy/x']); "
        "sys.exit(status + 40 * ('torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 2


def test_a_run_from_a_users_csv_to_an_adapter_that_loads_as_printed(
    tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{word} number {n},{label}" for n in range(30) for word, label in (("good thing", "up"), ("bad thing", "down"))]
    (tmp_path / "mine.csv").write_text("\n".join(["body,way", *rows]))
    block = "data.custom.mine={train: mine.csv, text: body, label: way}"
    call = ["--model", tiny_bert, "--task", "custom/mine", "--set", block, "--ranks", "all", "8", "8", *TINY, "--to", "out"]
    assert train(*call) == 0
    said = capsys.readouterr()
    assert "274 adapter parameters, 66 in the head" in said.err  # 2 (3² + 8² + 8²)
    assert "search score" in said.err
    record = json.loads((tmp_path / "out" / "adapter" / "run.json").read_text())
    assert record["labels"] == ["down", "up"]
    code = [line.strip() for line in said.out.splitlines() if line.startswith("  ")]
    namespace: dict[str, Any] = {}
    exec("\n".join(code), namespace)
    text = namespace["tokenizer"](["your text"], return_tensors="pt")
    assert namespace["model"](**text).logits.shape == (1, 2)

    assert train(*call, "--seed", "1") == 2, "another run's adapter is there"
    assert "a folder of its own" in capsys.readouterr().err
    assert train(*call, "--resume") == 0
    assert "continuing from" in capsys.readouterr().err


def test_sizes_are_cut_and_shown(tiny_bert: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["--model", tiny_bert, "--task", "toy/sentiment", "--ranks", "all", "8", "8", *TINY, "--to", str(tmp_path / "out")]
    assert train(*call, "--sizes", "60 274") == 2
    assert "the whole adapter has 274 parameters; give fewer" in capsys.readouterr().err
    assert train(*call, "--sizes", "60,150") == 0
    assert capsys.readouterr().out.count("parameters: score") == 2
    assert (tmp_path / "out" / "cuts" / "60" / "adapter" / "adapter_model.safetensors").is_file()


def test_a_run_that_diverges_ends_with_1_and_its_reason(
    tiny_bert: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["--model", tiny_bert, "--task", "toy/sentiment", "--method", "lora", "--learning-rate", "1e30", *TINY]
    assert train(*call, "--set", "max_grad_norm=0", "--to", str(tmp_path / "out")) == 1
    said = capsys.readouterr().err
    assert "diverged" in said
    assert "Traceback" not in said
