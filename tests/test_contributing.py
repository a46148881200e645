"""The examples of CONTRIBUTING work: an event, a command and a panel."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from orchestrator.commands import app
from tests.test_documents import CONTRIBUTING, blocks


def example(path: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Returns the module that CONTRIBUTING has under `path`, imported as if the file were there."""
    (block,) = [block for block in blocks(CONTRIBUTING) if block.text.startswith(f"# {path}\n")]
    module = ModuleType(path.removesuffix(".py").replace("/", "."))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block.text, path, "exec"), module.__dict__)
    return module


def test_example_of_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.record import events, state

    (block,) = [block for block in blocks(CONTRIBUTING) if "class Noted(Event)" in block.text]
    scope = {**vars(events), "__name__": events.__name__}
    exec(compile(textwrap.dedent(block.text), "noted", "exec"), scope)
    noted = scope["Noted"](text="the cluster is slow today")
    monkeypatch.setitem(events.EVENTS, "Noted", scope["Noted"])
    monkeypatch.setitem(state._AFTER, scope["Noted"], lambda before, event: replace(before, files=(event.text,)))
    again = events.Event.from_json(json.dumps(noted.to_json()))
    assert state.fold([again]).files == ("the cluster is slow today",)


def test_example_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from orchestrator.plan.trial import TrialResult
    from orchestrator.record.events import Ended
    from orchestrator.record.log import read_state
    from tests.orchestrator.recorded import over_seeds, record, write_log

    example("orchestrator/commands/failures.py", monkeypatch)
    row = re.search(r"`(Row\(.+?\)),`", CONTRIBUTING.read_text())
    assert row is not None
    monkeypatch.setattr(app, "COMMANDS", (*app.COMMANDS, eval(row[1], {"Row": app.Row})))
    folder = record(tmp_path / "runs" / "two", {"LoRA r1": (100, over_seeds(81.5)), "LoRA r2": (200, over_seeds())})
    assert app.main(["failures", str(folder)]) == 1
    assert capsys.readouterr().err == "no trial of two has failed\n"
    key = [*read_state(folder / "log.jsonl").entries][-1]
    write_log(folder, Ended(result=TrialResult(key, "failed", error="the loss is not finite")))
    assert app.main(["failures", "two", "--storage", str(folder.parent)]) == 0
    assert capsys.readouterr().out == "LoRA r2 · toy/sentiment · seed 1: the loss is not finite\n"
    assert app.main(["failures", "three", "--storage", str(folder.parent)]) == 2
    assert "there is no sweep 'three'" in capsys.readouterr().err


def test_example_of_a_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.dashboards.views import VIEWS, full_view

    panel, view = example("dashboards/panels/sizes.py", monkeypatch), full_view()
    assert "empty" in panel.data(VIEWS["nothing yet"]())
    plain = panel.data(view)
    assert max(plain["largest"]) == np.nanmax([row.value("adapter_bytes") for row in view.configurations])
    assert {trace["name"] for trace in panel.draw(plain)["figure"]["data"]} == {"smallest", "largest"}
