"""Plugins: the examples of docs/extending.md as a user writes them, and how plugins fail, change and reach other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from craft import TUNERS, plugins
from craft.methods import METHODS
from craft.plugins import VARIABLE, load_plugins
from craft.tasks import SUITES, TASKS
from craft.tasks.metrics import METRICS
from craft.testing import check_method, check_metric, check_task
from orchestrator.commands.app import WRONG, main
from orchestrator.plan.plan import make_plan
from orchestrator.plan.trial import TrialResult
from orchestrator.record.folder import one_driver
from orchestrator.record.manifest import describe_session, write_effective
from orchestrator.record.resume import changed_plugins
from orchestrator.record.state import State
from orchestrator.search.stages import make_strategy
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.settings import SEARCHERS
from orchestrator.testing import check_searcher
from orchestrator.worker.surroundings import WorkerSettings
from orchestrator.worker.worker import work
from tests.orchestrator.plans import driving
from tests.test_documents import ROOT, blocks

PAGE = ROOT / "docs" / "extending.md"
TABLES: list[dict[Any, Any]] = [METHODS, METRICS, TASKS, SUITES, SEARCHERS, TUNERS, plugins.LOADED, plugins._owners]
SWEEP = """
name: own
plugins: [{names}]
model: sentence-transformers/all-MiniLM-L6-v2
tasks: [toy/sentiment]
space:
  - {{method: lora, rank: {{values: [4, 1]}}}}
storage: {folder}
"""


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gives every table back as it was, and forgets the modules of plugins."""
    monkeypatch.delenv(VARIABLE, raising=False)
    copies, modules = [dict(table) for table in TABLES], {*sys.modules}
    yield
    os.environ.pop(VARIABLE, None)  # what loading sets for child processes
    for table, copied in zip(TABLES, copies, strict=True):
        table.clear()
        table.update(copied)
    for name in {"kappa", "gains", "parity", "cheapest", "mine"} & (sys.modules.keys() - modules):
        del sys.modules[name]


def example(name: str, folder: Path) -> None:
    (block,) = [block for block in blocks(PAGE) if block.text.startswith(f"# {name}\n")]
    (folder / name).write_text(block.text)


def sweep_file(folder: Path, names: str) -> Path:
    (folder / "own.yaml").write_text(SWEEP.format(names=names, folder=folder / "runs"))
    return folder / "own.yaml"


def test_the_examples_keep_the_contracts_of_rows(tmp_path: Path) -> None:
    names = ["kappa.py", "gains.py", "parity.py", "cheapest.py"]
    for name in names:
        example(name, tmp_path)
    load_sweep(sweep_file(tmp_path, ", ".join(names)))
    calls = [block.text for block in blocks(PAGE) if "check_metric(" in block.text]
    scope = {f.__name__: f for f in (check_metric, check_method, check_task, check_searcher)}
    exec(calls[0], scope)
    with pytest.raises(AssertionError, match="trains 192 numbers, not 191"):
        check_method("gains", trainable=191)


def test_a_sweep_uses_them(tmp_path: Path) -> None:
    for name in ("kappa.py", "cheapest.py"):
        example(name, tmp_path)
    rows = "".join(f"row {number},{number % 3}\n" for number in range(60))
    (tmp_path / "grades.csv").write_text("text,grade\n" + rows)
    own = "{train: grades.csv, text: text, label: grade, metric: kappa}"
    changes = [f"data.custom.grades={own}", "tasks=[custom/grades]", "search.algorithm=cheapest"]
    sweep = load_sweep(sweep_file(tmp_path, "kappa, cheapest.py"), changes)
    assert sweep.plugins == (str(tmp_path / "kappa.py"), str(tmp_path / "cheapest.py"))
    plan = make_plan(sweep)
    sizes = [trial.planned["trainable_parameters"] for trial in make_strategy(plan).wanted(State())]
    assert sizes == sorted(sizes)
    text = json.dumps(describe_session(plan).to_json())

    # A process that reads the record runs nothing of it, and still knows of what kind the score is.
    reader = (
        "import sys, json; from orchestrator.record.events import Event; from craft.tasks.metrics import METRICS\n"
        "event = Event.from_json(sys.stdin.read()); sweep = event.settings\n"
        "print(sweep.search.algorithm, METRICS['kappa'].signed, 'kappa' in sys.modules, 'cheapest' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", reader], input=text, capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.split() == ["cheapest", "True", "False", "False"]


@pytest.mark.slow
def test_a_worker_elsewhere_needs_no_copy_of_a_file(tmp_path: Path) -> None:
    example("kappa.py", tmp_path)
    load_plugins([str(tmp_path / "kappa.py")])
    (tmp_path / "kappa.py").unlink()
    look = "from craft import plugins; plugins.load_inherited(); import kappa; print(kappa.kappa([0, 1, 2], [0, 1, 2]))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == "1.0"


def test_a_worker_with_another_version_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("__version__ = '1.0'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(ROOT)
    load_plugins(["mine"])
    (tmp_path / "mine.py").write_text("__version__ = '2.0'\n")
    del sys.modules["mine"], plugins.LOADED["mine"]
    reports: list[dict[str, Any]] = []
    work("k", "{}", WorkerSettings(str(tmp_path), None, 1), lambda metrics, _folder: reports.append(metrics))
    result = TrialResult.from_json(reports[0]["results"][0])
    assert "plugin mine is another one here (2.0) than where the sweep began (1.0)" in str(result.error)
    assert result.retryable


def test_a_changed_plugin_is_named_on_resuming(tmp_path: Path) -> None:
    example("kappa.py", tmp_path)
    plan = make_plan(load_sweep(sweep_file(tmp_path, "kappa.py")))
    before = State().after(describe_session(plan))
    assert changed_plugins(before) == []
    (tmp_path / "kappa.py").write_text((tmp_path / "kappa.py").read_text() + "\n# another one\n")
    load_sweep(tmp_path / "own.yaml")
    assert METRICS["kappa"].signed
    assert [line.partition(" is ")[0] for line in changed_plugins(before)] == ["plugin kappa"]


@pytest.mark.parametrize(
    ("names", "reason"), [("kappa.py", "plugin kappa is another one"), ("kappa.py, mine.py", "plugins: were")]
)
def test_a_running_driver_keeps_its_plugins(
    names: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example("kappa.py", tmp_path)
    (tmp_path / "mine.py").write_text("")
    plan = make_plan(load_sweep(sweep_file(tmp_path, "kappa.py")))
    with driving(plan, plan.sweep.folder) as driver, one_driver(plan.sweep.folder):
        write_effective(driver.folder, plan.sweep)
        (tmp_path / "kappa.py").write_text((tmp_path / "kappa.py").read_text() + "\n# another one\n" * ("mine.py" not in names))
        assert main(["apply", str(sweep_file(tmp_path, names)), "--yes", "--set", "seeds=[0, 1]"]) == WRONG
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "mine.py",
            "\nraise RuntimeError('no licence')\n",
            r"mine cannot be imported: RuntimeError: no licence \(.*mine\.py:2\)",
        ),
        ("mine.py", "def f(:\n", r"plugin mine cannot be imported: SyntaxError"),
        (
            "mine.py",
            "import does_not_exist_here",
            r"imported: ModuleNotFoundError: No module named 'does_not_exist_here'",
        ),
        (
            "mine.py",
            "from craft.plugins import register_metric\nfrom craft.tasks.metrics import METRICS\n"
            "register_metric('accuracy', METRICS['f1'])",
            r"there is a metric 'accuracy' already: give yours another name",
        ),
        ("mine.py", 'x = ""\n' * 12_000, r"have 180,\d\d\d bytes.* at most 120,000 fit\. Install large ones"),
        ("absent.py", "", "there is no file absent.py, neither next to the sweep file nor here"),
        ("absent", "", "no such module on Python's path, and no file absent.py"),
        ("json.py", "", "has the name of another module, json: rename the file"),
        ("my.own.py", "", "my.own.py: a plugin file has a Python name"),
    ],
)
def test_a_plugin_that_fails_is_an_error_before_anything_trains(tmp_path: Path, name: str, text: str, message: str) -> None:
    for file in ("mine.py", "json.py", "my.own.py"):
        (tmp_path / file).write_text(text)
    with pytest.raises(SweepError, match=rf"own\.yaml:3: plugins\.0: .*{message}"):
        load_sweep(sweep_file(tmp_path, name))


@pytest.mark.parametrize("value", ["kappa.py", "[3]", "{a: 1}"])
def test_a_list_of_names_is_wanted(tmp_path: Path, value: str) -> None:
    with pytest.raises(SweepError, match="plugins"):
        load_sweep(sweep_file(tmp_path, ""), [f"plugins={value}"])


def test_an_installed_plugin_needs_no_line_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example("kappa.py", tmp_path)
    (tmp_path / "own-1.0.dist-info").mkdir()
    (tmp_path / "own-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (tmp_path / "own-1.0.dist-info" / "entry_points.txt").write_text("[craft_sweeps]\nkappa = kappa\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins.load_installed.cache_clear()
    load_sweep(sweep_file(tmp_path, ""))
    assert METRICS["kappa"].signed
    (tmp_path / "kappa.py").write_text("raise OSError('gone')")
    del sys.modules["kappa"]
    plugins.load_installed.cache_clear()
    with pytest.raises(SweepError, match=r"own\.yaml: plugin kappa cannot be imported: OSError: gone"):
        load_sweep(tmp_path / "own.yaml")
    plugins.load_installed.cache_clear()
