"""Wrong sweep files, and all that is said of each: every case of `tests/wrong_files/`, and those too long to be written there.

A case writes some sections, which take the place of those of its file's `base`. `set` holds overrides, `data` another file in
the folder. `model` in the folder is a BERT of two layers of width 32 without weights, which is enough to plan.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from craft.methods import METHODS
from craft.settings import TrainingSettings
from craft.tasks import SUITES, TASKS
from orchestrator.plan.plan import make_plan
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError, shown_names
from orchestrator.sweepfile.plain_yaml import MAX_BYTES, read_yaml
from orchestrator.sweepfile.schema import sweep_schema
from orchestrator.sweepfile.settings import METRICS
from tests.orchestrator.plans import config_alone

VALIDATOR = jsonschema.Draft202012Validator(sweep_schema())
FOLDER = Path(__file__).parents[2] / "wrong_files"
TABLES = {
    "<methods>": METHODS,
    "<suites>": SUITES,
    "<tasks>": [task for task in TASKS if "/" in task],
    "<metrics>": METRICS,
    "<training settings>": shown_names(TrainingSettings),
}
"""What a case writes for a list of names, so that a new row changes no case. `<...>` is what a library says."""


def cases() -> list[Any]:
    """The cases of every file, each with what its file says of all of them."""
    return [
        pytest.param({**page, **case}, id=f"{path.stem} {index}")
        for path in sorted(FOLDER.glob("*.yaml"))
        for page in [yaml.safe_load(path.read_text())]
        for index, case in enumerate(page.pop("cases"))
    ]


def compose(base: str, sections: str) -> str:
    """Returns the text of `base` without the sections that `sections` has too, and then those."""
    keys = re.findall(r"^(\w+):", sections, re.M)
    remaining = [part for part in re.split(r"^(?=\w)", base, flags=re.M) if part.partition(":")[0] not in keys]
    return "".join(remaining) + sections


def read(text: str, overrides: list[str], plan: bool = False) -> list[str]:
    """Returns what is said of a file with this text in the current folder."""
    Path("sweep.yaml").write_text(text)
    with pytest.raises(SweepError) as error:
        make_plan(load_sweep("sweep.yaml", overrides)) if plan else load_sweep("sweep.yaml", overrides)
    lines = [line.replace(str(Path.cwd()), "FOLDER") for line in error.value.lines]
    for short, names in TABLES.items():
        lines = [line.replace(", ".join(names), short) for line in lines]
    return lines


@pytest.mark.parametrize("case", cases())
def test_each_mistake_is_told_with_its_place(case: dict[str, Any], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config_alone(here / "model")
    for name, text in case.get("data", {}).items():
        (here / name).write_text(text)
    before = sorted(here.iterdir())
    text = case["text"] if "text" in case else compose(case["base"], case.get("file", ""))
    lines = read(text, case.get("set", []), case.get("plan", False))
    if not re.fullmatch(re.escape(case["says"]).replace("<\\.\\.\\.>", ".*"), "\n".join(lines)):
        assert "\n".join(lines) == case["says"]
    assert sorted(here.iterdir()) == sorted([*before, here / "sweep.yaml"]), "a wrong file writes nothing"
    structural = re.search("unknown (key|method)|allowed are|name: got|: missing; (every|this)", case["says"])
    if structural and ".config." not in case["says"] and "set" not in case:
        assert not VALIDATOR.is_valid(read_yaml(here / "sweep.yaml").content), "the schema takes it"


NAME = "name: small\n"
LONG = {
    NAME + "data: " + "[" * 5000 + "]" * 5000: "sweep.yaml:2: more than 24 levels deep",
    NAME + "# " + "x" * MAX_BYTES: "sweep.yaml: larger than 256 KiB; no sweep file is",
    NAME + "seeds: [" + "9" * 5000 + "]": "sweep.yaml:2: a number of 5000 digits; 18 are allowed",
}


@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
def test_a_file_without_an_end_is_refused(text: str, here: Path) -> None:
    assert read(text, []) == [LONG[text]]
