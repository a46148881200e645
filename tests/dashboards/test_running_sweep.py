"""The page beside a sweep that really runs: live from its store, and in the record that the sweep leaves in MLflow."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dashboards.store import DashboardError, Store
from tests.dashboards.browser import MARKS, Browser
from tests.dashboards.test_browser import POINTS, ROWS, visit_panels
from tests.mlflow_server import Server

pytestmark = MARKS

SWEEP = """\
name: live
model: sentence-transformers/all-MiniLM-L6-v2
tasks: [toy/sentiment]
seeds: [0, 1]
training: {epochs: 1, batch_size: 8, learning_rate: 1e-2, max_length: 32, train_examples: 32, eval_examples: 24}
space:
  - {method: craft, ranks: {values: [[all, 4, 4], [all, 8, 8], [all, 16, 16]]}}
  - {method: lora, rank: {values: [1, 2, 300]}}
constraints: {trainable_parameters: {max: 100_000}}
"""
PLANNED, CONFIGURATIONS, INFEASIBLE = 10, 5, 1
LISTED = "[...document.querySelectorAll('*')].filter(one => one.textContent.trim() === 'front.html').pop()"


@contextmanager
def started(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A command of this project as a process of its own, ended with all its children."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    log = (folder / f"{command[0]}.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.wait()
        log.close()


def has_sweep(uri: str) -> bool:
    try:
        return bool(Store(uri).sweeps())
    except DashboardError:  # there is no store yet, or no table in it
        return False


def drawn(browser: Browser) -> dict[str, tuple[float, float]]:
    return {identity: (x, y) for identity, x, y in browser.run(POINTS)}


def test_live_and_afterwards(tmp_path: Path) -> None:
    (tmp_path / "live.yaml").write_text(SWEEP)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    mlflow = Server(uri, tmp_path)
    with Browser(tmp_path / "profile") as browser, closing(mlflow):
        with started(tmp_path, "orchestrator.run", "live.yaml", "--cpus", "1", "--quiet") as sweep:
            Browser.until(lambda: has_sweep(uri), "the sweep is on record", 180)
            served = ("orchestrator", "page", "--port", "0", "--tracking-uri", uri, "--mlflow-url", mlflow.uri)
            with started(tmp_path, *served) as dashboard:
                assert dashboard.stdout is not None
                found = re.match(r"http://127\.0\.0\.1:\d+", dashboard.stdout.readline())
                assert found, (tmp_path / "orchestrator.log").read_text()
                watch(browser, found[0], sweep)
                finished(browser, found[0], tmp_path / "runs" / "live", mlflow)
            assert sweep.wait(240) == 0, (tmp_path / "orchestrator.run.log").read_text()
        recorded(browser, mlflow)


def watch(browser: Browser, url: str, sweep: subprocess.Popen[str]) -> None:
    """The page while trials run."""
    browser.driver.get(url)
    browser.wait("Craft.page && Craft.page.lastState && Craft.page.lastState.running")
    browser.run("window.loadedOnce = true")
    browser.wait("document.querySelector('[data-panel=front] .main-svg .points path')", 240)
    assert sweep.poll() is None, "it should draw while the sweep runs"
    early = drawn(browser)
    assert 0 < len(early) < CONFIGURATIONS
    Browser.until(lambda: len(drawn(browser)) > len(early), "a configuration that ends appears by itself", 240)
    assert browser.run("window.loadedOnce"), "without a reload"


def finished(browser: Browser, url: str, folder: Path, mlflow: Server) -> None:
    """The page when the sweep is over, held against the files that the sweep wrote by itself."""
    browser.wait(f"Craft.page.lastState.status.startsWith('{PLANNED}/{PLANNED} trainings done')", 300)
    browser.wait("!Craft.page.lastState.running", 120)
    rows = {row["configuration"]: row for row in csv.DictReader((folder / "front.csv").open())}
    assert len(rows) == CONFIGURATIONS
    Browser.until(lambda: drawn(browser).keys() == rows.keys(), "every configuration is drawn")
    for identity, (x, y) in drawn(browser).items():
        row = rows[identity]
        assert (x, y) == pytest.approx((float(row["trainable_parameters"]), float(row["score"])), rel=1e-5)
    on_front = {identity for identity, row in rows.items() if row["on_front"] == "True"}
    assert set(browser.run("Craft.page.table.data.front")) == on_front
    # A trial's end is on record a moment before its configuration's, and each panel is drawn in its turn.
    note = "document.querySelector('[data-panel=front] .note').innerText"
    wanted = f"{CONFIGURATIONS} done, {INFEASIBLE} dropped as infeasible"
    browser.wait(f"{note}.includes('{wanted}')")
    browser.wait(
        "Craft.page.table.data.columns.find(one => one.key === 'state').values.filter(one => one !== 'done').length === 1"
    )
    states = browser.run("Craft.page.table.data.columns.find(one => one.key === 'state').values")
    pairs = zip(browser.run("Craft.page.table.data.label"), states, strict=True)
    assert [(label[:4], state) for label, state in pairs if state != "done"] == [("LoRA", "infeasible")]

    visit_panels(browser)
    assert browser.complaints() == []
    assert browser.hosts() == {url}

    # a point's link leads to its run in MLflow's own page
    smallest = min(drawn(browser).items(), key=lambda one: one[1][0])[0]
    mlflow.start()
    browser.run(f"Craft.page.pin('{smallest}', false)")
    browser.driver.get(browser.run("document.querySelector('.card a').href"))
    name = f"{float(rows[smallest]['trainable_parameters']):,.0f} · "
    browser.wait(f"[...document.querySelectorAll('a')].some(link => link.innerText.trim().startsWith({name!r}))", 120)


def recorded(browser: Browser, mlflow: Server) -> None:
    """The sweep's own run in MLflow's page: the front as a picture in its description, the page among its artifacts."""
    info = Store(mlflow.backend).feed("live").run.info
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
    assert browser.run(ROWS) == CONFIGURATIONS + INFEASIBLE
    browser.run("Craft.page.table.copy()")
    browser.wait("document.querySelector('.said').textContent")
    text = browser.run("document.querySelector('.by-hand').hidden || document.querySelector('.by-hand').value")
    assert text is True or len(text.splitlines()) == CONFIGURATIONS + INFEASIBLE + 1, (
        "what cannot be copied there is there to be taken"
    )
    browser.driver.switch_to.default_content()
    # the last of what the live page asked for before it was left may be among them
    assert all(host.startswith("http://127.0.0.1:") for host in browser.hosts())
