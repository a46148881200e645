"""The documents hold: their commands run, their links and paths exist, their code compiles and their sweep files load."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import yaml
from peft import PeftConfig
from transformers import AutoConfig

from craft import CraftConfig
from craft.trainer.probe import Speed
from orchestrator.commands import app
from orchestrator.plan.plan import make_plan
from orchestrator.plan.planner import Planner
from orchestrator.record.state import Entry
from orchestrator.results.summary import summarize_entries
from orchestrator.review import prospect
from orchestrator.review.pick import pick
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import NothingMeets
from orchestrator.sweepfile.sweep import Sweep
from tests.craft.trainer.test_counting import config_of

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])

NOT_RUN = {
    "pip": "changes the environment",
    "python -m venv": "makes an environment",
    ".": "changes the shell",
    "ruff": "`land` and CI run it over everything",
    "mypy": "CI runs it over everything",
    "pytest": "would run this test again; its files must exist",
    "export": "changes the shell",
    "mlflow": "serves until it is stopped",
    "curl": "asks a server that the line before it starts",
    "ray": "needs a Ray cluster with a dashboard",
    "sbatch": "needs Slurm",
}
"""First words of commands that no test runs, each with the reason."""

SLOW_TO_PLAN = {"sweeps/baselines.yaml", "data.root=DATA"}
"""Words of commands that a slow test plans, since they build many models or read published data."""
SESSION_FLAGS = ("--resume", "--retry-failed", "--until-answered", "--quiet")
"""Options of a run without a value, which its plan leaves out."""

PROGRAM = "craft-sweeps"
OWN = ("orchestrator.", "craft.", "dashboards", "tests.")
"""Modules whose command lines are run."""

PLACES = ("craft/", "orchestrator/", "dashboards/", "sweeps/", "tests/", "docs/", ".ci/")
"""A path in a document that begins with one of these must exist."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a document: its language (`""` if it names none), its text, and the line on which it begins."""

    document: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: Path) -> list[Block]:
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", document.read_text(), re.M | re.S)
    text = document.read_text()
    return [Block(document, text.count("\n", 0, one.start()) + 1, one[1], one[2]) for one in found]


def prose(document: Path) -> str:
    return re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S)


BLOCKS = [block for document in DOCUMENTS for block in blocks(document)]


def starts_a_command(words: str) -> bool:
    words = re.sub(r"^([A-Z_]+=\S+ )+", "", words)
    return re.match(r"craft-sweeps |python (-m \w|\w+/)", words) is not None or words.startswith(
        tuple(f"{name} " for name in NOT_RUN)
    )


def commands() -> Iterator[tuple[Path, str]]:
    """Every command of the documents: lines of blocks without a language, and code in running text that is a command."""
    for block in BLOCKS:
        if block.language == "":
            for line in block.text.replace("\\\n", " ").splitlines():
                for part in re.split(r"\s&&\s", line.split("  #")[0]):
                    if starts_a_command(f"{part} "):
                        yield block.document, part.strip()
    for document in DOCUMENTS:
        for code in re.findall(r"`([^`\n]+)`", prose(document)):
            if " " in code and starts_a_command(code):
                yield document, code


COMMANDS = list(dict.fromkeys(commands()))


def own_command(command: str) -> tuple[str, list[str]] | None:
    """Program or module and arguments of a command of this project; None for another program's."""
    words = shlex.split(re.sub(r"^([A-Z_]+=\S+ )+", "", command))
    if words[0] == PROGRAM:
        return PROGRAM, words[1:]
    if words[0] == "python" and words[1] != "-m":
        return words[1].removesuffix(".py").replace("/", "."), words[2:]
    if words[:2] == ["python", "-m"] and words[2].startswith(OWN):
        return words[2], words[3:]
    return None


def as_tested(module: str, arguments: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The calls by which a command is tested: it is parsed up to `--help`, and a sweep is planned.

    Sweep files that a document makes up (`sweep.yaml`, `SWEEP.yaml`) stand for the default sweep. A plan leaves out a cluster,
    storage and a tracking server that are not here.
    """
    arguments = ["sweeps/ranks.yaml" if one in ("SWEEP.yaml", "sweep.yaml") else one for one in arguments]
    planned = module == "orchestrator.run" or (module == PROGRAM and arguments[:1] in (["run"], ["plan"]))
    yield module, [*arguments, "--help"]
    if not planned or arguments in (["run"], ["plan"], []) or SLOW_TO_PLAN & set(arguments):
        return
    kept = [word for word in arguments if word not in ("run", "plan", *SESSION_FLAGS)]
    for flag in ("--address", "--storage", "--tracking-uri", "--hours", "--max-concurrent", "--cpus"):
        if flag in kept:
            del kept[kept.index(flag) : kept.index(flag) + 2]
    yield PROGRAM, ["plan", *kept]


def examples() -> Iterator[tuple[Path, str]]:
    """The commands in the examples of `--help`, by the file that has them."""
    for row in app.COMMANDS:
        for call, _ in row.examples:
            yield Path(str(app.__file__)), f"{PROGRAM} {call}"


@pytest.mark.parametrize(("document", "command"), [*COMMANDS, *examples()], ids=lambda one: str(one).replace(f"{ROOT}/", ""))
def test_no_shell_reads_a_command_as_a_pattern(document: Path, command: str) -> None:
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", command)
    assert not set("[]{}*?") & set(bare), f"{document.name}: zsh looks for files of that name: quote it"


def test_commands_name_sweeps_and_configurations_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps are those of `sweeps/`, or those that the same page runs under another name; labels are those of their plans."""
    monkeypatch.chdir(ROOT)
    shipped = {yaml.safe_load(file.read_text())["name"]: file for file in sorted((ROOT / "sweeps").glob("*.yaml"))}
    pages = [(document, words) for document, command in [*COMMANDS, *examples()] if (words := own_command(command))]
    named = {(page, words[words.index("--name") + 1]) for page, (_, words) in pages if "--name" in words}
    named |= {(Path(str(app.__file__)), "longer")}
    suggestions = [(page, arguments) for page, (_, arguments) in pages if "suggest" in arguments[:1]]
    named |= {(page, Path(arguments[arguments.index("--data") + 1]).stem) for page, arguments in suggestions}
    checked = set()
    for page, (module, words) in pages:
        if module != PROGRAM or not words or words[0] not in ("take", "cut", "compare", "export"):
            continue
        sweeps = [Path(word).name for word in words[1 : 3 if words[0] == "compare" else 2]]
        for sweep in (one for one in sweeps if not one.isupper() and not one.startswith("SWEEP_")):
            own = {
                block["name"]
                for block in map(yaml.safe_load, (b.text for b in BLOCKS if b.document == page and b.language == "yaml"))
                if "name" in block
            }
            assert sweep in {*shipped, *own, "glue"} or (page, sweep) in named, f"{page.name}: no sweep is called {sweep}"
        for flag in ("--pick", "--configuration-a", "--configuration-b"):
            label = words[words.index(flag) + 1] if flag in words else ""
            if " " in label and sweeps[0] in shipped:
                checked.add((shipped[sweeps[0]], label))
    assert len(checked) >= 2
    for file, label in checked:
        sweep = load_sweep(file)
        plan = make_plan(sweep, Planner(sweep))
        with pytest.raises(NothingMeets, match="has no finished trial"):
            pick(label, summarize_entries(Entry(trial.trial) for trial in plan.trials), sweep.objectives)


def test_every_command_is_run_or_listed_with_its_reason() -> None:
    for document, command in COMMANDS:
        assigned = re.sub(r"^([A-Z_]+=\S+ )+", "", command)
        listed = f"{assigned} ".startswith(tuple(f"{name} " for name in NOT_RUN))
        assert own_command(command) is not None or listed, f"{document.relative_to(ROOT)}: {command}"
        if listed:
            files = [word for word in shlex.split(command) if re.fullmatch(r"[\w/.-]+\.(txt|py|toml|sbatch)", word)]
            assert [one for one in files if not (ROOT / one).exists()] == [], command
    assert len(given_arguments()) > 20


def given_arguments() -> list[tuple[str, list[str]]]:
    """Module and arguments of every command of this project, as the documents give them."""
    return [found for _, command in COMMANDS if (found := own_command(command))]


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are made there without timing real steps of MiniLM: that takes four seconds each and has its own test."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(prospect, "probe_plan", lambda plan: Speed(1.0, 0.1, 0.01))


@pytest.mark.usefixtures("at_root")
@pytest.mark.parametrize("module", sorted({module for module, _ in given_arguments()}))
def test_commands(module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"{module}.__main__" if module in ("dashboards", "tests.gpu") else app.__name__ if module == PROGRAM else module
    loaded = importlib.import_module(place)
    tested = [tuple(words) for given in given_arguments() for name, words in as_tested(*given) if name == module]
    for arguments in dict.fromkeys(tested):
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        try:
            status = loaded.main()
        except SystemExit as ended:
            status = ended.code
        shown = capsys.readouterr()
        assert status in (0, None), f"{module} {' '.join(arguments)}: {shown.err}"
        assert shown.out, f"{module} {' '.join(arguments)} shows nothing"
    if module in (PROGRAM, "orchestrator.run", "dashboards"):
        return  # an unknown option ends its parse before --help is shown
    source = Path(str(loaded.__file__)).read_text()
    assert '__name__ == "__main__"' in source, f"python -m {module} would do nothing"
    flags = {word for name, words in given_arguments() if name == module for word in words if word.startswith("--")}
    flags -= {*re.findall(r"--[a-z][a-z-]*", source)}  # `--help` ends a parse before later flags are looked at
    assert not flags, f"{module} has no {flags}"


@pytest.mark.slow
@pytest.mark.usefixtures("at_root")
@pytest.mark.parametrize(
    "sweep",
    sorted({word for _, words in given_arguments() if SLOW_TO_PLAN & {*words} for word in words if word.endswith(".yaml")}),
)
def test_slow_plans(sweep: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = os.environ.get("CRAFT_TEST_DATA", "")
    if sweep != "sweeps/baselines.yaml" and not (Path(data) / "glue").is_dir():
        pytest.skip("no published data: name a folder with glue/ in CRAFT_TEST_DATA")
    given = [f"--set=data.root={data}"] if data else []
    model = yaml.safe_load((ROOT / sweep).read_text())["model"]
    if model.endswith(".gguf"):
        if not (Path(data) / model).is_file():
            pytest.skip(f"no {model} in CRAFT_TEST_DATA")
        given.append(f"--set=model={Path(data) / model}")
    if model.endswith("all-mpnet-base-v2"):  # a plan reads its shape alone, which is transformers' default of its type
        AutoConfig.for_model("mpnet", architectures=["MPNetForMaskedLM"]).save_pretrained(tmp_path)
        given.append(f"--set=model={tmp_path}")
    assert app.main(["plan", sweep, *given]) == 0
    printed = capsys.readouterr().out
    assert " trials" in printed
    assert "40,288" in printed or sweep != "sweeps/glue/paper.yaml", "the paper's number for RoBERTa-base"


def test_the_python_page_has_every_field_of_the_configuration() -> None:
    page = (ROOT / "docs/for-programs.md").read_text().partition("\n## Reports\n")[0]
    lines = re.findall(r"^- (`\w+`(?:, `\w+`)*)(?: \(|:)", page, re.M)
    named = {name for line in lines for name in re.findall(r"`(\w+)`", line)}
    own = {one.name for one in fields(CraftConfig)} - {one.name for one in fields(PeftConfig)}
    assert named == own - {"layers_to_transform", "dropout_mask"}, "one is refused, one is of earlier versions"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_paths_exist(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (document.parent / path).resolve() if path else document
        assert there.exists(), f"{target} does not exist"
        if anchor:
            headings = [re.sub(r"[^\w -]", "", one.lower()) for one in re.findall(r"^#+ (.+)$", prose(there), re.M)]
            assert anchor in [heading.replace(" ", "-") for heading in headings], f"{target}: no such heading"
    for given in re.findall(r"(?<![\w./])(?:%s)[\w./*-]*" % "|".join(map(re.escape, PLACES)), text):  # noqa: UP031
        path = given.rstrip(".")
        assert list(ROOT.glob(path.rstrip("/"))), f"{path} does not exist"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "yaml"], ids=str)
def test_yaml_is_a_sweep_or_a_part_of_one(block: Block, tmp_path: Path) -> None:
    content = yaml.safe_load(block.text)
    assert set(content) <= set(Sweep.model_fields), f"{block}: no keys of a sweep file"
    if {"name", "model", "tasks", "space"} <= set(content):
        (tmp_path / "sweep.yaml").write_text(block.text)
        assert load_sweep(tmp_path / "sweep.yaml", []).name == content["name"]


def test_what_a_larger_model_costs(tmp_path: Path) -> None:
    """The memory on the page is that of the shipped sweep's plan, which needs a model's configuration alone."""
    file = ROOT / "sweeps/commonsense/llama.yaml"
    shipped = yaml.safe_load(file.read_text())["space"]
    sweep = load_sweep(file, [f"model={config_of('llama2-7b', tmp_path)}", f"space={json.dumps([shipped[0], shipped[2]])}"])
    counts = [row.known for row in make_plan(sweep, Planner(sweep)).configurations]
    craft, *_, lora = (f"{count['estimated_memory_bytes'] / 2**30:.1f}" for count in counts)
    assert f"takes {craft} GiB for CRAFT, {lora} for LoRA r32" in " ".join((ROOT / "docs/cluster.md").read_text().split())
