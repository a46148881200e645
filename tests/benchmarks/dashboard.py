"""How long the page takes with 5,000 runs: to its first plot, and for each thing a person does. Goals: 2 s and 100 ms.

    python tests/benchmarks/dashboard.py [--configurations 1000] [--trials 4] [--json FILE]

Writes the log of a synthetic sweep into a temporary SQLite store, serves it and opens it in headless
Chromium. An interaction is timed from its start until the browser has painted the frame after it.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

sys.path.insert(0, str(Path(__file__).parents[2]))

from mlflow import MlflowClient

from dashboards.app import make_app
from dashboards.content import view_of
from dashboards.page import as_json
from dashboards.panels import PANELS, spec_of
from dashboards.store import Store
from orchestrator.record.manifest import hardware
from tests.dashboards.browser import Browser
from tests.dashboards.synthetic import START, FakeRun, FakeSession, configuration, events_of, write_sweep

METHODS = ("craft", "lora", "dora", "vera")
IDS = "Craft.page.table.data.id"
FIND = "const box = document.querySelector(where); box.value = value"
SET = f"(([where, value, kind]) => {{ {FIND}; box.dispatchEvent(new Event(kind)); }})"
INTERACTIONS = {
    "hover a point": f"Craft.page.hover({IDS}[given % 50], {{clientX: 400, clientY: 300}})",
    "select a third of the points": f"Craft.page.choose(new Set({IDS}.filter((_, index) => (index + given) % 3 === 0)))",
    "clear the selection": "Craft.page.choose(null)",
    "filter the table": f"{SET}(['input[type=search]', given % 2 ? 'craft' : 'lora q,v', 'input'])",
    "sort the table": "document.querySelectorAll('[data-panel=table] th button')[given % 5].click()",
    "change an axis": f"{SET}(['select[name=x]', given % 2 ? 'adapter_bytes' : 'trainable_parameters', 'change'])",
    "zoom": "Plotly.relayout(document.querySelector('[data-panel=front] .plot'), {'yaxis.range': [60 + given, 90]})",
}


def runs_of(configurations: int, trials: int) -> list[FakeRun]:
    rng = np.random.default_rng(0)
    runs: list[FakeRun] = [FakeSession(planned=configurations * trials, status="finished")]
    for index in range(configurations):
        method = METHODS[index % len(METHODS)]
        r2, r3 = (int(one) for one in rng.choice([8, 16, 32, 64, 128, 256], 2))
        rate = float(10 ** rng.uniform(-4, -1))
        params: dict[str, Any] = {"learning_rate": rate, "dropout": float(rng.choice([0.0, 0.005, 0.1]))}
        params |= {"projections": str(rng.choice(["q,v", "q,k,v,o"]))} | {f"setting_{number}": number for number in range(15)}
        params |= {"ranks": f"all,{r2},{r3}", "r1": 12, "r2": r2, "r3": r3} if method == "craft" else {"rank": r2 // 8}
        score = 70 + 3 * np.log2(r2) - 6 * (np.log10(rate) + 2.7) ** 2
        seeds = max(1, trials // 2)
        scores = {
            task: list(score - 3 * number + rng.normal(0, 1, seeds))
            for number, task in enumerate(("mrpc", "rte")[: trials // seeds])
        }
        counts = {"energy_kept": r2 / 300, "peak_memory_bytes": 1e9 + r2}
        count = 2 * (144 + r2 * r2 + r3 * r3)
        runs += configuration(
            f"{index:010x}",
            method=method,
            params=params,
            scores=scores,
            parameters=count,
            at=START + index,
            extra=counts,
        )
    return runs


def measure(configurations: int, trials: int, repeats: int, folder: Path) -> dict[str, Any]:
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    runs = runs_of(configurations, trials)
    write_sweep(MlflowClient(uri), "big", events_of("big", runs), folder / "big")
    found: dict[str, Any] = {"runs": len(runs), "configurations": configurations}

    store = Store(uri)
    store.sweeps()
    feed = store.feed("big")
    for what in ("first read", "later look"):
        began = time.perf_counter()
        feed.refresh()
        found[f"{what}, s"] = time.perf_counter() - began
    began = time.perf_counter()
    view = view_of(store, [feed])
    found["tables, s"] = time.perf_counter() - began
    for name in ("front", "table"):
        began = time.perf_counter()
        text = as_json(spec_of(PANELS[name], view))
        found[f"panel {name}, s"] = time.perf_counter() - began
        found[f"panel {name}, MB"] = len(text) / 1e6

    store = Store(uri)
    store.sweeps()  # MLflow's import and its store's opening are no part of a page
    return found | browse(store, folder / "profile", repeats)


def browse(store: Store, profile: Path, repeats: int) -> dict[str, Any]:
    app = make_app(store)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    Browser.until(lambda: server.started, "the server has started")
    browser = Browser(profile)
    address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    found: dict[str, Any] = {}
    try:
        began = time.perf_counter()
        browser.driver.get(address)
        browser.wait("document.querySelector('[data-panel=front] .main-svg .points')", 300)
        found["first plot, s"] = time.perf_counter() - began
        browser.driver.get("about:blank")
        began = time.perf_counter()
        browser.driver.get(address)
        browser.wait("document.querySelector('[data-panel=front] .main-svg .points')", 300)
        found["plot at a second visit, s"] = time.perf_counter() - began
        browser.wait("Craft.page.table && Craft.page.table.data && Craft.page.lastState.status.includes('done')", 300)
        time.sleep(3)
        for name, script in INTERACTIONS.items():
            found[f"{name}, ms"] = statistics.median(timed(browser, script, turn) for turn in range(repeats))
    finally:
        browser.quit()
        server.should_exit = True
        thread.join(timeout=20)
    return found


def timed(browser: Browser, script: str, turn: int) -> float:
    """Milliseconds from the interaction to the end of the frame that shows it; of an axis change, to that of the new figure."""
    return float(
        browser.driver.execute_async_script(
            f"const given = arguments[0], done = arguments[1], began = performance.now(); {script};"
            "Promise.resolve(Craft.page.drawing).then(() =>"
            "requestAnimationFrame(() => setTimeout(() => done(performance.now() - began))));",
            turn,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=4, help="of each configuration")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given.configurations, given.trials, given.repeats, Path(folder))
    facts = hardware()
    found["machine"] = f"{facts['processor']}, {facts['cpus']} cores, Python {platform.python_version()}"
    for name, value in found.items():
        print(f"{name:45} {value:.3f}" if isinstance(value, float) else f"{name:45} {value}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
