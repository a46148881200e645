"""Everything that shows a sweep's front shows the same one, here for score and peak memory, whose front is another."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from mlflow import MlflowClient
from rich.console import Console

from dashboards.page import state_of, view_of
from dashboards.panels import PANELS
from dashboards.store import Store
from orchestrator.commands import session
from orchestrator.driver.display import SweepOutcome
from orchestrator.driver.driver import Driver
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Outcome, TrialResult
from orchestrator.record.options import Options
from orchestrator.review.front_picture import draw as draw_picture
from orchestrator.review.front_report import front_report
from orchestrator.review.past_sweep import find_sweep
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.settings import Enough
from orchestrator.tools.markup import plain
from orchestrator.tools.signals import Stop
from tests.dashboards.browser import MISSING, Browser
from tests.dashboards.views import read_feed
from tests.mlflow_server import Server
from tests.orchestrator.logged import mirror
from tests.orchestrator.plans import count
from tests.orchestrator.stand_in import ROOT

pytestmark = pytest.mark.slow  # a sweep of eighteen trials is run
SWEEP = """\
name: memory
model: sentence-transformers/all-MiniLM-L6-v2
tasks: [toy/sentiment]
seeds: [0, 1, 2]
objectives: {score: maximize, peak_memory_bytes: minimize}
space:
  - {method: lora, rank: {values: [1, 2, 4, 8, 16, 32]}}
"""
# rank -> mean score, peak memory in MB; a rank has a thousand parameters. Seeds are half a point apart.
MEASURED = {1: (81.0, 3000), 2: (60.0, 100), 4: (80.0, 200), 8: (79.8, 210), 16: (84.0, 1000), 32: (50.0, 2000)}
ON_FRONT, MAY_BE, KNEE, ENOUGH = {2, 4, 16}, {8}, 4, 16


class Finished(NamedTuple):
    """The sweep when it is over: what it printed, where it is, and the rank of each configuration."""

    screen: str
    folder: Path
    uri: str
    ranks: dict[str, int]


def stand_in(driver: Driver, _stop: Stop, **_: object) -> SweepOutcome:
    """Takes the place of `drive`: every trial ends at once as MEASURED says."""
    while (job := driver.next_job()) is not None:
        run = job.training.run
        score, memory = MEASURED[run.parameters["rank"]]
        score += (run.seed - 1) / (2 if run.parameters["rank"] in (1, 4, 16) else -2)
        counts = {"trainable_parameters": 1000.0 * run.parameters["rank"], "peak_memory_bytes": 1e6 * memory}
        result = TrialResult(job.key, "finished", {"search_score": score, "score": score}, counts, 3, 1.0)
        driver.record_start(job.key)
        driver.record_end(job.key, [Outcome(result)])
    return driver.outcome(None, None)


def run(file: Path, uri: str, console: Console, resume: bool = False) -> Plan:
    sweep = load_sweep(file, [f"storage={file.parent / 'runs'}"])
    plan = count(sweep, lambda run: 1000 * run.parameters["rank"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "drive", stand_in)
        patch.setattr(session, "_prepare", lambda *given: None)
        session.run_session(plan, Options(resume=resume), uri, console)
    mirror(plan.sweep.folder, uri)  # what the store could not be sent in time, on a busy machine
    return plan


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Finished:
    root = tmp_path_factory.mktemp("memory")
    (root / "memory.yaml").write_text(SWEEP)
    console = Console(file=io.StringIO(), width=200)
    shutil.copy(empty_store, root / "mlflow.db")
    uri = f"sqlite:///{root / 'mlflow.db'}"
    plan = run(root / "memory.yaml", uri, console)
    ranks = {configuration.id: configuration.parameters["rank"] for configuration in plan.configurations}
    return Finished(console.file.getvalue(), plan.sweep.folder, uri, ranks)  # type: ignore[attr-defined]


def test_the_terminal_and_the_files(finished: Finished) -> None:
    marks = {int(rank): mark for mark, rank in re.findall(r"^\W?([● ])[✓ ] .*?LoRA r(\d+)", finished.screen, re.MULTILINE)}
    assert {rank for rank, mark in marks.items() if mark == "●"} == ON_FRONT
    assert re.search(rf"● 3 of 6 .*; knee: LoRA r{KNEE},", finished.screen)
    assert re.search(rf"●✓ .*LoRA r{ENOUGH}\b", finished.screen)
    rows = list(csv.DictReader((finished.folder / "front.csv").open()))
    assert [int(row["rank"]) for row in rows if row["enough"] == "True"] == [ENOUGH]
    assert {int(row["rank"]) for row in rows if row["on_front"] == "True"} == ON_FRONT
    assert {int(row["rank"]) for row in rows if row["may_be_on_front"] == "True"} == ON_FRONT | MAY_BE
    assert {int(row["rank"]) for row in rows if float(row["p_front"]) >= 0.05} == ON_FRONT | MAY_BE
    shaded = re.findall(r"^\\rowcolor.*?LoRA & r(\d+)", (finished.folder / "front.tex").read_text(), re.MULTILINE)
    assert {int(rank) for rank in shaded} == ON_FRONT
    assert (finished.folder / "front.png").is_file()


def test_the_answer_is_the_same_everywhere(finished: Finished) -> None:
    client = MlflowClient(finished.uri)
    experiment = client.get_experiment_by_name("memory").experiment_id
    (sweep,) = client.search_runs([experiment], "tags.`craft.kind` = 'sweep'")
    text, folder = sweep.data.tags["craft.answer"], find_sweep(str(finished.folder))
    assert text.startswith(f"Enough: LoRA r{ENOUGH}, q v (16,000 parameters): 84.0 ± ")
    assert text in finished.screen
    assert plain(text.splitlines()[0]) in sweep.data.tags["mlflow.note.content"]
    store = Store(finished.uri)
    feed = read_feed(store, "memory")
    assert state_of([], view_of(store, [feed]))["answers"] == [{"sweep": "memory", "text": text, "folder": str(Path.cwd())}]
    reply = folder.answer
    assert reply.verdict == text.splitlines()[0]
    assert Enough.model_validate_json(sweep.data.params["enough"]) == folder.sweep.enough == Enough()


def test_the_picture_and_the_report(finished: Finished) -> None:
    found = find_sweep(str(finished.folder))
    (axes,) = draw_picture(found.summaries, found.sweep.objectives, "front").axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("peak memory (MiB)", "score")
    assert axes.texts[-1].get_text().split("–")[-1] == str(len(ON_FRONT))
    report = front_report(found)
    assert finished.ranks[report.knee] == KNEE
    for name, ranks in (("on_front", ON_FRONT), ("may_be_on_front", ON_FRONT | MAY_BE), ("enough", {ENOUGH})):
        assert {finished.ranks[row.configuration] for row in report.rows if getattr(row, name)} == ranks


def test_the_tags_in_the_tracking_store(finished: Finished) -> None:
    client = MlflowClient(finished.uri)
    runs = client.search_runs([client.get_experiment_by_name("memory").experiment_id], "tags.`craft.kind` = 'configuration'")
    tagged = {
        name: {int(run.data.params["rank"]) for run in runs if run.data.tags.get(f"craft.{name}") == "true"}
        for name in ("on_front", "may_be_on_front", "knee", "enough")
    }
    assert tagged == {"on_front": ON_FRONT, "may_be_on_front": ON_FRONT | MAY_BE, "knee": {KNEE}, "enough": {ENOUGH}}


def test_the_data_of_the_page(finished: Finished) -> None:
    store = Store(finished.uri)
    feed = read_feed(store, "memory")
    view = view_of(store, [feed])
    table, spec = PANELS["table"].draw(view)["table"], PANELS["front"].draw(view)
    values = spec["values"]
    assert {finished.ranks[one] for one in table["front"]} == ON_FRONT
    assert {finished.ranks[one] for one in table["possible"]} == MAY_BE
    assert [finished.ranks[one] for one in table["enough"]] == [ENOUGH]
    cells = {column["key"]: column["values"] for column in table["columns"]}
    chances = dict(zip(table["id"], cells["m.p_front"], strict=True))
    written = {row["configuration"]: row for row in csv.DictReader((finished.folder / "front.csv").open())}
    score = next(column for column in table["columns"] if column["key"] == "m.score")
    for one, low, high in zip(table["id"], score["low"], score["high"], strict=True):
        assert (low, high) == pytest.approx([float(written[one][f"score_{end}"]) for end in ("low", "high")])
        assert chances[one] == pytest.approx(float(written[one]["p_front"]))
    assert "● is on the front of score (more is better), peak memory (less is better)" in table["legend"]
    ranks = [finished.ranks[identity] for identity in values["id"]]
    line = values["front/peak_memory_bytes/score"]
    assert [ranks[index] for index in line] == [2, 4, 16], "in ascending order of memory"
    assert [ranks[index] for index in values["answers"]] == [ENOUGH]
    assert [choice["value"] for choice in spec["choices"]][:2] == ["score", "peak_memory_bytes"]
    assert {ranks[index] for index in values["front/trainable_parameters/score"]} == {1, 16}, "over other axes: of these two"


@pytest.mark.browser
@MISSING
def test_the_page_that_the_sweep_leaves(finished: Finished, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.open((finished.folder / "front.html").as_uri())
        stars = browser.run(
            "[...document.querySelectorAll('[data-panel=table] tbody tr')].map(line => "
            "[line.craftId, line.querySelector('.sign') && line.querySelector('.sign').textContent])"
        )
        assert {finished.ranks[one] for one, star in stars if star == "●"} == ON_FRONT
        assert {finished.ranks[one] for one, star in stars if star == "○"} == MAY_BE
        traces = "document.querySelector('[data-panel=front] .plot').data"
        marked = browser.run(f"{traces}.find(trace => trace.name === 'on the front').customdata")
        assert {finished.ranks[one] for one in marked} == ON_FRONT
        open_ = browser.run(f"{traces}.find(trace => trace.name === 'may be on the front').customdata")
        assert {finished.ranks[one] for one in open_} == MAY_BE
        assert browser.run(f"{traces}.find(trace => trace.name === 'front').x") == pytest.approx([95.3674, 190.735, 953.674])
        assert "The answer: the smallest that is enough" in browser.run("document.querySelector('.card .hint').innerText")
        assert browser.run("document.querySelector('.card h4').innerText").startswith(f"LoRA r{ENOUGH},")
        axis = "document.querySelector('[data-panel=front] .plot')._fullLayout.xaxis.title.text"
        assert browser.run(axis) == "peak memory (MiB)"
        assert browser.complaints() == []


LISTED = "[...document.querySelectorAll('*')].filter(one => one.textContent.trim() === 'front.html').pop()"


@pytest.mark.browser
@MISSING
def test_mlflows_page_is_a_link_away_and_shows_the_picture_and_the_page(finished: Finished, tmp_path: Path) -> None:
    """The live page is served by its command, MLflow's page by MLflow's server."""
    with closing(Server(finished.uri, tmp_path)) as mlflow, Browser(tmp_path / "profile") as browser:
        mlflow.start()
        flags = ("--port", "0", "--tracking-uri", finished.uri, "--mlflow-url", mlflow.uri)
        command = [sys.executable, "-m", "orchestrator", "page", *flags]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as served:
            try:
                url = re.match(r"http://127\.0\.0\.1:\d+", served.stdout.readline())
                browser.open(url[0])
                (enough,) = (identity for identity, rank in finished.ranks.items() if rank == ENOUGH)
                browser.run("Craft.page.pin(arguments[0], false)", enough)
                browser.driver.get(browser.run("document.querySelector('.card a').href"))
                browser.wait("[...document.links].some(link => link.innerText.trim().startsWith('16,000 · '))", 120)
            finally:
                served.kill()
        info = Store(finished.uri).feed("memory").run.info
        run, view = f"{mlflow.uri}/#/experiments/{info.experiment_id}/runs/{info.run_id}", "?workflowType=machine_learning"
        browser.driver.get(run + view)
        browser.wait("document.querySelector('img[src*=\"front.png\"]')", 120)
        browser.wait("document.querySelector('img[src*=\"front.png\"]').naturalWidth > 300")
        browser.driver.get(f"{run}/artifacts{view}")
        browser.wait(LISTED, 120)
        browser.run(f"{LISTED}.click()")
        browser.wait("document.querySelector('iframe')")
        browser.driver.switch_to.frame(browser.driver.find_element("css selector", "iframe"))
        browser.wait("window.Craft && Craft.page && document.querySelector('[data-panel=front] .main-svg .points path')")
        assert browser.run("document.querySelectorAll('[data-panel=table] tbody tr').length") == len(MEASURED)
        browser.run("Craft.page.table.copy()")
        browser.wait("document.querySelector('.said').textContent")
        text = browser.run("document.querySelector('.by-hand').hidden || document.querySelector('.by-hand').value")
        assert text is True or len(text.splitlines()) == len(MEASURED) + 1, "what cannot be copied there can be taken by hand"
        browser.driver.switch_to.default_content()
        assert all(host.startswith("http://127.0.0.1:") for host in browser.hosts())


def test_what_a_later_file_leaves_out_counts_nowhere(tmp_path: Path, empty_store: Path) -> None:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    uri, file = f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "memory.yaml"
    for text in (SWEEP, SWEEP.replace("[0, 1, 2]", "[0, 1]").replace("[1, 2, 4, 8, 16, 32]", "[2, 4, 16]")):
        file.write_text(text)
        plan = run(file, uri, Console(file=io.StringIO()), resume=True)
    store = Store(uri)
    feed = read_feed(store, "memory")
    trials = feed.frames.trials()
    assert sorted((trial.entry.trial.label, trial.entry.trial.seed) for trial in trials) == [
        (f"LoRA r{rank}, q v", seed) for rank in (16, 2, 4) for seed in (0, 1)
    ]
    page = {(summary.label, summary.finished, summary.score.mean) for summary in feed.frames.summaries.values()}
    assert {label for label, *_ in page} == {f"LoRA r{rank}, q v" for rank in (2, 4, 16)}
    for past in (find_sweep(str(plan.sweep.folder)), find_sweep("memory", uri)):
        assert {(summary.label, summary.finished, summary.score.mean) for summary in past.summaries} == page
