"""The command line as people meet it: its plan, its refusals, what continues a sweep, its exit status, and what it imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.commands.app import QUIET, WRONG
from orchestrator.commands.run import exit_status
from orchestrator.commands.start import plan_sweep
from orchestrator.driver.display import SweepOutcome
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Trial, TrialResult, Why
from orchestrator.record.folder import SweepFolder
from orchestrator.record.options import Options, check_socket_room
from orchestrator.record.state import Entry, State
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from tests.orchestrator.conftest import Cli
from tests.orchestrator.plans import config_alone
from tests.orchestrator.recorded import over_seeds, record, write_adapter

ROOT = Path(__file__).parents[2]
SWEEP = """\
name: small
model: MODEL
tasks: [toy/sentiment]
training: {max_steps: 2, batch_size: 4, max_length: 16, train_examples: 40, eval_examples: 20}
space:
  - method: craft
    ranks: {values: [[all, 4, 4], [all, 8, 8]]}
  - method: lora
    rank: 1
constraints: {trainable_parameters: {max: 300}}
"""


@pytest.fixture
def folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a sweep file and a model that is a config.json alone."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "160")
    for name in QUIET:
        monkeypatch.setenv(name, os.environ.get(name, QUIET[name]))
    (here / "sweep.yaml").write_text(SWEEP.replace("MODEL", config_alone(here / "tiny")))
    return here


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_plan_prints_configurations_and_costs_and_leaves_nothing(folder: Path, cli: Cli) -> None:
    before = names(folder)
    printed = cli("plan", "sweep.yaml")
    row = next(line for line in printed.out.splitlines() if line.startswith("CRAFT 4, q v"))
    assert row.split()[5:7] == ["72", "66"]  # 2 (2² + 4² + 4²), and a head of 2 x 32 + 2
    assert row.split()[-2:] == ["1", "2"]  # one trial of two steps
    assert "merged" not in printed.out
    assert "3 configurations x 1 task x 1 seed = 3 trials, 6 optimizer steps" in printed.out
    assert printed.err == ""
    assert names(folder) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.yaml"], "nowhere.yaml: there is no such file"),
        (["sweep.yaml", "--storage", "sweep.yaml/runs"], "cannot be written"),
        (["sweep.yaml", "--storage", "nosuch://bucket/path"], "storage 'nosuch://bucket/path/small' cannot be opened"),
        (["sweep.yaml"], "has no tokenizer"),
        (["sweep.yaml", "--set", "model=nobody/nothing"], "HF_HUB_OFFLINE is set"),
        (["sweep.yaml", "--set", "tasks=[glue/rte]", "--set", "data.root=nowhere"], "data.root has no folder"),
        (["sweep.yaml", "--retry-failed"], "--retry-failed goes with --resume"),
        (["sweep.yaml", "--tracking-uri", "mlruns"], "is a folder; MLflow keeps runs in a database"),
        (["sweep.yaml", "--tracking-uri", "http://127.0.0.1:1"], "the tracking store http://127.0.0.1:1 does not answer"),
        (["sweep.yaml", "--tracking-uri", "sqlite:///sweep.yaml"], "sweep.yaml is no SQLite database"),
        (["sweep.yaml", "--max-concurrent", "0"], "See craft-sweeps run --help"),
        ([str(ROOT / "sweeps" / "ranks.yaml"), "--address", "127.0.0.1:9"], "nothing answers at 127.0.0.1:9"),
        ([str(ROOT / "sweeps" / "ranks.yaml"), "--address", "ray://head:10001"], "Ray's client cannot drive a sweep"),
    ],
)
def test_a_wrong_call_is_one_message_and_leaves_nothing(arguments: list[str], said: str, folder: Path, cli: Cli) -> None:
    before = names(folder)
    printed = cli("run", *arguments, status=WRONG)
    assert said in printed.err
    assert "Traceback" not in printed.err
    assert names(folder) == before


def test_a_temporary_folder_too_long_for_sockets_is_refused_before_anything_starts(
    folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = names(folder)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", f"/tmp/{'x' * 105}")
    said = cli("run", "sweep.yaml", status=WRONG).err
    assert "has a path of 110 bytes" in said
    assert said.count("set RAY_TMPDIR to a shorter folder") == 1
    assert names(folder) == before
    with monkeypatch.context() as mac:
        mac.setattr("sys.platform", "darwin")
        check_socket_room()  # Ray reads TMPDIR on Linux alone
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    assert "has no tokenizer" in cli("run", "sweep.yaml", status=WRONG).err  # which is found later


def test_the_command_that_goes_on_does_not_retry_once_more_and_is_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options("my sweep.yaml", ("seeds=[0, 1]",), resume=True, retry_failed=True, cpus=2)
    assert options.again() == "craft-sweeps run 'my sweep.yaml' --resume --set 'seeds=[0, 1]' --cpus 2"
    options = Options("s.yaml", (), "n", "my runs", "http://me:secret@host", "auto", start=("python", "-m", "orchestrator.run"))
    flags = "--name n --storage 'my runs' --tracking-uri 'http://***@host' --address auto"
    assert options.again() == f"python -m orchestrator.run s.yaml --resume {flags}"
    monkeypatch.setenv("CRAFT_CONTINUE", "sbatch --export=ALL,TRACKING_URI=http://me:secret@here:5000 slurm.sbatch")
    assert options.again() == "sbatch --export=ALL,TRACKING_URI=http://***@here:5000 slurm.sbatch", "a job script names its own"


def test_a_folder_that_holds_the_sweep_is_not_run_over(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = folder / "runs" / "small"
    stored.mkdir(parents=True)
    (stored / "sweep.yaml").write_text(load_sweep("sweep.yaml").to_yaml())
    assert "Add --resume to continue it" in cli("run", "sweep.yaml", status=WRONG).err
    for command in ("run", "plan"):
        said = f"there is nothing to resume in {folder / 'runs'}; it has small. Did you mean 'small'?"
        assert said in cli(command, "sweep.yaml", "--name", "smal", "--resume", status=WRONG).err
    monkeypatch.setenv("CRAFT_CONTINUE", "sbatch job.sh")
    cli("plan", "sweep.yaml", "--name", "smal", "--resume")  # a job script starts a sweep by the command that continues it
    said = cli("run", "sweep.yaml", "--resume", "--set", "training.max_steps=3", status=WRONG).err
    assert "training.max_steps: was 2, is 3 (--set training.max_steps=3)" in said


def recorded(*changes: str, **more: str) -> Options:
    """The options by which the sweep of the file has run."""
    options = Options("sweep.yaml", changes, **more)  # type: ignore[arg-type]
    sweep = load_sweep("sweep.yaml", options.assignments)
    sweep.folder.mkdir(parents=True)
    (sweep.folder / "sweep.yaml").write_text(sweep.to_yaml())
    options.remember(SweepFolder(sweep.folder), sweep.written)
    return options


def resumed(*changes: str) -> Plan:
    return plan_sweep(Options("sweep.yaml", changes, resume=True), Console(quiet=True))


def test_an_unchanged_file_continues_what_was_recorded(folder: Path) -> None:
    recorded("seeds=[0, 1]", "enough.within=2", "training.max_steps=3", tracking_uri="sqlite:///other.db")
    sweep = resumed().sweep
    assert (sweep.seeds, sweep.enough.within, sweep.tracking.uri) == ((0, 1), 2, "sqlite:///other.db")
    assert sweep.training.max_steps == 3, "also what may not change"
    sweep = resumed("seeds=[0, 1, 2]").sweep
    assert (sweep.seeds, sweep.enough.within) == ((0, 1, 2), 2), "one more change, the others stay"
    Path("sweep.yaml").write_text("# the same sweep\n" + Path("sweep.yaml").read_text())
    assert resumed().sweep.seeds == (0, 1)
    assert plan_sweep(Options("sweep.yaml"), Console(quiet=True)).sweep.seeds == (0,), "without --resume it is another sweep"


def test_a_resumed_sweep_keeps_the_searcher_that_auto_was(folder: Path) -> None:
    Path("sweep.yaml").write_text(Path("sweep.yaml").read_text() + "search: {algorithm: auto, configurations: 2}\n")
    recorded()
    for more in (3, 300):  # of which a new sweep would make grid and tpe
        search = resumed(f"search.configurations={more}").sweep.search
        assert (search.algorithm, search.configurations) == ("gp", more)


@pytest.mark.parametrize("place", ["my runs", '📁 "runs"', "a\\b: #c"])
@pytest.mark.usefixtures("folder")
def test_a_storage_folder_may_have_any_name(place: str) -> None:
    assert load_sweep("sweep.yaml", Options(storage=place).assignments).storage == str(Path(place).absolute())


def test_the_uri_of_the_checkpoints_is_remembered(folder: Path) -> None:
    """Or finished trainings would be trained again for more of their sizes."""
    options = recorded(storage="s3://bucket/runs?region=eu-1")
    sweep = load_sweep("sweep.yaml")
    assert "--storage 's3://bucket/runs?region=eu-1'" in Options("sweep.yaml", resume=True).continued(sweep).again()
    assert replace(options, storage="runs").continued(sweep).storage == "runs"
    Path("sweep.yaml").write_text(Path("sweep.yaml").read_text() + "seeds: [0, 1]\n")
    assert Options("sweep.yaml", edited=True).continued(load_sweep("sweep.yaml")).storage == options.storage


def test_what_is_remembered_has_no_password(folder: Path) -> None:
    Path("sweep.yaml").write_text(Path("sweep.yaml").read_text() + "tracking: {tags: {page: 'http://me:secret@wiki'}}\n")
    options = recorded("seeds=[0, 1]", tracking_uri="http://me:secret@elsewhere:5000")
    assert "secret" not in (folder / "runs" / "small" / "written.json").read_text() + options.again()
    assert not replace(options, own_process=True).restart, "a process that starts by a list of arguments would show it"
    assert replace(options, own_process=True, tracking_uri="http://here:5000").restart[-1] == "http://here:5000"
    assert resumed().sweep.tracking.tags == {"page": "http://me:secret@wiki"}, "the file is the same"


def test_an_edited_file_is_to_be_applied(folder: Path) -> None:
    recorded("seeds=[0, 1]", storage="my runs")
    Path("sweep.yaml").write_text(Path("sweep.yaml").read_text().replace("rank: 1", "rank: 2") + "budget: {trials: 9}\n")
    options = Options("sweep.yaml", resume=True, storage="my runs")
    with pytest.raises(SweepError) as refused:
        plan_sweep(options, Console(quiet=True))
    lines = str(refused.value).splitlines()
    assert lines[0] == f"sweep.yaml was edited since {folder / 'my runs' / 'small'} ran with it:"
    assert lines[1:3] == [
        "  space.1.rank: was 1, is 2 (sweep.yaml:9)",
        "  budget: was nothing (null), is {trials: 9} (sweep.yaml:11)",
    ]
    assert "craft-sweeps apply sweep.yaml --storage 'my runs'" in lines[3]
    assert "--set 'seeds=[0, 1]'" in lines[3]
    sweep = plan_sweep(replace(options, edited=True), Console(quiet=True)).sweep
    assert (sweep.seeds, sweep.budget.trials) == ((0,), 9), "the file holds"


@pytest.mark.parametrize(
    ("statuses", "how", "status"),
    [
        ("finished", {}, 0),
        ("finished stopped", {}, 0),
        ("finished failed", {}, 1),
        ("finished cut:failed", {}, 1),
        ("finished", {"trouble": "Ray broke off"}, 1),
        ("finished waiting", {"signal": 2}, 130),
        ("finished", {"signal": 15}, 0),  # it came when nothing was left to do
        # Stopped between two suggestions: nothing runs and nothing waits, but the searcher had not come to its end.
        ("finished", {"open": True, "signal": 15}, 143),
        ("finished", {"open": True, "signal": 2}, 130),
        ("finished waiting", {"open": True, "exhausted": "budget.wall_clock"}, 0),
        ("finished failed", {"exhausted": "budget.wall_clock"}, 1),
        ("finished cut:failed", {"exhausted": "budget.wall_clock"}, 1),
    ],
)
def test_the_exit_status_says_how_the_sweep_stands(statuses: str, how: dict[str, Any], status: int) -> None:
    """Of trials that ended so; "waiting" has no result, and a cut is one of the first trial's adapter."""
    entries = {}
    for seed, text in enumerate(statuses.split()):
        ended, why = text.removeprefix("cut:"), Why("cut", "0") if text.startswith("cut:") else Why()
        result = None if ended == "waiting" else TrialResult(str(seed), ended)  # type: ignore[arg-type]
        trial = Trial(str(seed), "c", "LoRA", "lora", "t", seed, "honest", {}, why)
        entries[trial.key] = Entry(trial, result, "ended" if result else "waiting")
    assert exit_status(SweepOutcome(State(entries=entries, wanted=dict.fromkeys(entries)), 1.0, **how)) == status


HEAVY = {"optuna", "torch", "transformers", "peft", "datasets", "ray", "mlflow", "sklearn", "pandas", "matplotlib", "pyarrow"}


def loaded(program: str, folder: Path) -> set[str]:
    """The heavy libraries in `sys.modules` after a program, whose own output is swallowed."""
    program = (
        f"import contextlib, io, json, sys\nheavy = {HEAVY}\n"
        f"with contextlib.redirect_stdout(io.StringIO()):\n    {program}\n"
        "print(json.dumps(sorted(heavy & {*sys.modules})))"
    )
    environment = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=folder, env=environment
    )
    return {*json.loads(done.stdout)}


def test_help_is_given_a_file_is_checked_and_a_sweep_is_driven_with_nothing_heavy(folder: Path) -> None:
    """Later lines of the program import more, so a line counts what the lines before it imported, too."""
    check = "from orchestrator.commands.app import main; assert main(['--help']) == 0 and not heavy & {*sys.modules}\n"
    check += "    import orchestrator.run, orchestrator.search.stages, orchestrator.search.scheduler\n"
    check += "    from orchestrator.sweepfile.load import load_sweep; load_sweep('sweep.yaml')\n"
    check += "    from orchestrator.run import main; assert main(['sweep.yaml', '--set', 'trainin.epochs=1']) == 2\n"
    check += "    assert heavy & {*sys.modules} <= {'pandas', 'pyarrow', 'matplotlib'}\n"
    check += "    import orchestrator.commands.session, orchestrator.tune.attempts"
    assert not loaded(check, folder) & {"optuna", "torch", "transformers", "peft"}


@pytest.mark.slow
def test_tables_are_judged_and_what_is_on_record_is_shown_and_taken_with_nothing_heavy(tmp_path: Path) -> None:
    rows = [f"{rank},{seed},{0.8 + 0.01 * rank + 0.003 * seed},{100 * rank}" for rank in range(4) for seed in range(3)]
    (tmp_path / "runs.csv").write_text("\n".join(["rank,seed,accuracy,params", *rows]))
    adapter = write_adapter(tmp_path / "adapter", {"peft_type": "LORA"})
    sizes = {"LoRA r1": (100, over_seeds(81.5, 79.0)), "LoRA r2": (200, over_seeds(82.5, 81.0))}
    record(tmp_path / "runs" / "two", sizes, adapter=adapter)
    calls = [f"main({command.split()})" for command in ("judge runs.csv", "status two", "front two", "take two --to out")]
    assert loaded(f"from orchestrator.commands.app import main; assert [{', '.join(calls)}] == [0] * 4", tmp_path) == set()


def test_the_package_is_light_and_keeps_its_functions(tmp_path: Path) -> None:
    """A module that is imported later does not take the place of the function of its name."""
    program = "import orchestrator; assert not heavy & {*sys.modules} and 'pydantic' not in sys.modules\n"
    program += "    import orchestrator.run, orchestrator.plan.plan; from orchestrator import plan, run, open_sweep\n"
    program += "    assert {f.__module__ for f in (plan, run, open_sweep)} == {'orchestrator.commands.api'}"
    loaded(program, tmp_path)


@pytest.mark.slow
def test_the_page_is_made_with_nothing_that_trains(tmp_path: Path) -> None:
    page = "import dashboards.app, dashboards.page, dashboards.store, mlflow; mlflow.MlflowClient"
    assert not loaded(page, tmp_path) & {"torch", "ray", "transformers", "peft"}
