"""The page in a browser: live against a real store, and as one file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from selenium.webdriver.common.keys import Keys

from dashboards.app import make_app
from dashboards.store import Store
from orchestrator.commands.app import main
from tests.dashboards.browser import MARKS, Browser
from tests.dashboards.synthetic import FakeSession, StoreAt, configuration, events_of, grid, send
from tests.orchestrator.stand_in import wait_for

pytestmark = MARKS

POINTS = """(() => { const traces = document.querySelector('[data-panel=front] .plot').data;
  return traces.filter(trace => trace.mode === 'markers' && trace.customdata)
    .flatMap(trace => trace.customdata.map((id, index) => [id, trace.x[index], trace.y[index]])); })()"""
SET = """(([where, value, kind]) => { const box = document.querySelector(where); box.value = value;
  box.dispatchEvent(new Event(kind)); })(arguments)"""
READY = "{0}.querySelector('.main-svg, table tbody tr, .empty') && !{0}.innerText.includes('Loading')"
ROWS = "document.querySelectorAll('[data-panel=table] tbody tr').length"
NAMES = """(names => names.length > 5 && names.map(name => name.getBoundingClientRect()))(
  [...document.querySelectorAll('[data-panel=front] .textpoint text')].filter(name => name.style.visibility !== 'hidden'))"""
LABEL = "Craft.page.table.data.label[Craft.page.table.index.get(arguments[0])]"
HOSTILE = "<img src=x onerror=alert(1)>/../<b>б\u202eя</b>{x}" + "ы" * 300


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as browser:
        yield browser


@contextmanager
def served(store: Store) -> Iterator[str]:
    app = make_app(store, every_s=0.3)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started, seconds=60)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)


def place(browser: Browser, x: float, y: float) -> tuple[float, float]:
    """Where on the screen a point of the front lies."""
    script = """(([x, y]) => { const plot = document.querySelector('[data-panel=front] .plot'), full = plot._fullLayout;
      const box = plot.getBoundingClientRect();
      const across = full.xaxis._offset + full.xaxis.d2p(x), down = full.yaxis._offset + full.yaxis.d2p(y);
      return [box.left + across, box.top + down]; })(arguments)"""
    left, top = browser.run(script, x, y)
    return left, top


def check_unscrolled(browser: Browser) -> None:
    """Nothing has been scrolled to, as in a print, a PDF or a picture of the whole page: every panel is there."""
    browser.wait("!document.querySelector('main').innerText.includes('Loading')")
    assert browser.run("document.documentElement.scrollTop") == 0
    assert browser.run("document.querySelectorAll('[data-panel] .main-svg').length") > 3


def visit_panels(browser: Browser) -> None:
    """Scrolls to every panel: it has something to show, or says why not."""
    for name in browser.run("[...Craft.page.panels.keys()]"):
        browser.run("document.querySelector(`[data-panel=${arguments[0]}]`).scrollIntoView()", name)
        box = f"document.querySelector('[data-panel={name}]')"
        browser.wait(READY.format(box))
        assert "could not be drawn" not in browser.run(f"{box}.innerText")


def test_live(browser: Browser, store_at: StoreAt, tmp_path: Path) -> None:
    store = store_at("ranks", [FakeSession(planned=100), *grid(seeds=2, tasks=("mrpc", "rte"))])
    with served(store) as url:
        browser.open(url)
        check_unscrolled(browser)
        assert browser.run("document.title").startswith("ranks")
        assert browser.run(ROWS) == 22

        # a hover says what the point is, a click keeps it
        identity, x, y = browser.run(POINTS)[0]
        at = place(browser, x, y)
        browser.mouse("mouseMoved", *at)
        tip = browser.wait("!document.getElementById('tip').hidden && document.getElementById('tip').innerText")
        label = browser.run(LABEL, identity)
        same = dict(browser.run("Craft.page.table.data.shared"))
        assert all(word in tip for word in (label, "learning_rate", "mrpc", f"protocol {same['protocol']}", "model sentence-"))
        browser.mouse("mousePressed", *at, button="left", clickCount=1)
        browser.mouse("mouseReleased", *at, button="left", clickCount=1)
        browser.wait("document.querySelector('.card h4').innerText === " + repr(label))

        # dragging over points filters the table to them and dims the rest
        highest = max(browser.run(POINTS), key=lambda point: point[2])
        corner = place(browser, highest[1], highest[2])
        browser.drag((corner[0] - 30, corner[1] - 14), (corner[0] + 14, corner[1] + 14))
        browser.wait(f"Craft.page.selected && {ROWS} === Craft.page.selected.size")
        assert browser.run("Craft.page.selected.has(arguments[0])", highest[0])
        chosen = browser.run("[...Craft.page.selected]")
        assert 0 < len(chosen) < 22

        # new runs arrive without losing the selection or the zoom
        axis = browser.run("document.querySelector('[data-panel=front] .nsdrag').getBoundingClientRect()")
        middle = (axis["left"] + axis["width"] / 2, axis["top"] + axis["height"] / 2)
        browser.drag(middle, (middle[0], middle[1] + 40))
        shown = "document.querySelector('[data-panel=front] .plot')._fullLayout.yaxis"
        zoom = browser.wait(f"!{shown}.autorange && {shown}.range.slice()")
        scores = {"mrpc": [95.0, 96.0], "rte": [95.0, 96.0]}
        new = configuration("new0000000", label="the new one", parameters=777, scores=scores)
        send(store.uri, tmp_path / "ranks", *events_of("ranks", new)[2:])
        browser.wait("Craft.page.table.index.has('new0000000')")
        wait_for(lambda: "new0000000" in {point[0] for point in browser.run(POINTS)}, seconds=60)
        assert sorted(browser.run("[...Craft.page.selected]")) == sorted(chosen)
        assert browser.run(ROWS) == len(chosen)
        assert browser.run(f"{shown}.range") == zoom

        # the selection goes with its chip
        browser.run("document.querySelector('.chip').click()")
        browser.wait(f"{ROWS} === 23")

        # another axis: the drawn values are that metric's
        browser.run(SET, "select[name=x]", "adapter_bytes", "change")
        browser.wait("document.querySelector('[data-panel=front] .plot')._fullLayout.xaxis.title.text === 'adapter size (KiB)'")
        assert {point[1] for point in browser.run(POINTS) if point[0] == "new0000000"} == {4 * 777 / 1024}

        # filter and sort
        browser.run(SET, "input[type=search]", "lora learning_rate>0.0005", "input")
        assert browser.run(ROWS) == 3
        browser.run(
            "[...document.querySelectorAll('[data-panel=table] th button')].find(one => one.textContent === '# Params').click()"
        )
        shown = browser.run("[...document.querySelectorAll('[data-panel=table] tbody tr')].map(row => row.cells[0].innerText)")
        assert [label.split()[2] for label in shown] == ["1", "4", "8"]

        # copies are of what is shown
        grant = {"origin": url, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
        browser.driver.execute_cdp_cmd("Browser.grantPermissions", grant)
        browser.run("[...document.querySelectorAll('.tools button')].find(b => b.textContent === 'Copy CSV').click()")
        browser.wait("document.querySelector('.said').textContent === '3 rows copied as CSV'")
        copied = browser.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0], arguments[0])")
        assert copied.splitlines()[0].startswith("label,score,score_low,score_high,trainable_parameters,")
        assert len(copied.splitlines()) == 4

        # a command is copied as it is shown
        command = f"craft-sweeps take ranks --pick {identity} --to adapters/{identity} --tracking-uri {store.uri}"
        browser.run("Craft.page.pin(arguments[0], false)", identity)
        assert browser.run("document.querySelector('.card .command code').textContent") == command
        assert "Run in /home/me" in browser.run("document.querySelector('.card').innerText")
        browser.run("document.querySelector('.card .command button').click()")
        browser.wait("document.querySelector('.card .command button').textContent === 'Copied'")
        assert browser.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0], arguments[0])") == command

        visit_panels(browser)
        assert browser.hosts() == {url}
        assert browser.complaints() == []


def test_hostile_names_are_text_everywhere(browser: Browser, store_at: StoreAt) -> None:
    name = "hostile"  # of plain letters, as sweep files have it
    runs = [FakeSession(status="finished")]
    for index in range(5):
        runs += configuration(
            f"<i>{index}</i>'",
            method=HOSTILE[:60],
            label=HOSTILE + str(index),
            params={"rank": index, "<u>projections</u>": f"</script><script>alert({index})</script>{index % 2}"},
            scores={"<s>task</s>": [70.0 + index, 71.0], "{y}": [60.0, 61.0 + index]},
            states={("{y}", 1): "failed"} if index == 0 else None,
            reason="<a href=http://evil.example>why</a>",
        )
    store = store_at(name, runs)
    with served(store) as url:
        browser.open(url)
        visit_panels(browser)
        browser.run("Craft.page.pin(Craft.page.table.data.id[1], false)")
        assert (
            browser.run(
                "document.querySelectorAll('main i, main b, main u, main s, main img, main svg a, main a[href*=evil]').length"
            )
            == 0
        )
        assert "<img src=x" in browser.run("document.querySelector('.card h4').textContent")
        browser.run("document.querySelector('.card button[aria-pressed]').click()")
        browser.run("Craft.page.pin(Craft.page.table.data.id[2], false)")
        assert browser.run("document.querySelectorAll('[data-panel=pair] i, [data-panel=pair] img').length") == 0
        assert "<img src=x" in browser.run("document.querySelector('[data-panel=pair] .said').textContent")
        assert browser.hosts() == {url}
        assert browser.complaints() == []


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (360, True)], ids=["wide light", "narrow dark"])
def test_the_exported_file_needs_nothing(tmp_path: Path, store_at: StoreAt, width: int, dark: bool) -> None:
    store = store_at("ranks", [FakeSession(status="finished"), *grid(seeds=2)])
    path = tmp_path / "out" / "front.html"
    assert main(["page", "ranks", "--to", str(path), "--tracking-uri", store.uri]) == 0
    with Browser(tmp_path / "profile", width=width, dark=dark) as browser:
        browser.open(path.as_uri())
        check_unscrolled(browser)
        assert browser.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        assert browser.run("document.documentElement.scrollWidth") <= width
        visit_panels(browser)
        assert browser.run("document.querySelectorAll('[data-panel=parallel] .annotation').length") > 10, "the axes have values"
        heads = browser.run("[...document.querySelectorAll('[data-panel=table] th')].map(one => one.getBoundingClientRect())")
        assert heads[2]["right"] < width, "the number of parameters needs no swipe"
        cells = "[...document.querySelector('[data-panel=table] tbody tr').cells].slice(1)"
        heading = browser.run(f"{cells}.map(cell => getComputedStyle(cell, '::before').content)")
        boxes = browser.run(f"{cells}.map(cell => cell.getBoundingClientRect())")
        assert (heading[1], boxes[0]["bottom"] <= boxes[1]["top"]) == (('"# Params"', True) if width < 640 else ("none", False))
        browser.run(SET, "[data-panel=front] select[name=published]", "RoBERTa-large", "change")
        names = browser.wait(NAMES) if width > 520 else []
        for place, name in enumerate(names):
            assert not [one for one in names[:place] if one["left"] < name["right"] and one["right"] > name["left"]
                and one["top"] < name["bottom"] and one["bottom"] > name["top"]]  # fmt: skip
        # rows can be reached and pinned by keyboard alone
        browser.run("document.querySelector('[data-panel=table] .name').focus()")
        browser.driver.switch_to.active_element.send_keys("\n")
        browser.wait(
            "document.querySelector('.card h4').textContent === document.querySelector('[data-panel=table] .name').textContent"
        )
        # the learning curves of what is pinned are drawn again, over the others: two seeds, each of three points
        focus = "document.querySelector('[data-panel=curves] .plot').data.find(trace => trace.name === 'selected').y"
        assert browser.run(f"{focus}.filter(value => value !== null).length") == 6
        # and so can the points of the plot: walked along, kept, selected
        browser.run("document.querySelector('[data-panel=front] .plot').focus()")
        for _ in range(3):
            browser.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        points = sorted({tuple(point) for point in browser.run(POINTS)}, key=lambda point: (point[1], -point[2]))
        assert browser.run("document.querySelector('#tip h4').textContent") == browser.run(LABEL, points[2][0])
        browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
        browser.driver.switch_to.active_element.send_keys(Keys.SPACE)
        assert browser.run("[Craft.page.pinned, ...Craft.page.selected]") == [points[2][0]] * 2
        assert browser.run(ROWS) == 1
        # two are pinned by keyboard, too: side by side in the order of the table, with their difference and its command
        pair = "document.querySelector('[data-panel=pair]')"
        assert browser.run(f"{pair}.hidden")
        browser.run("document.querySelector('.card button[aria-pressed]').focus()")
        browser.driver.switch_to.active_element.send_keys("\n")
        assert browser.run("document.activeElement.getAttribute('aria-pressed')") == "true"
        browser.run("Craft.page.choose(null)")
        browser.run("Craft.page.pin(Craft.page.table.data.id[0], false)")
        first, second = browser.run(LABEL.replace("arguments[0]", "Craft.page.pinned")), browser.run(LABEL, points[2][0])
        assert browser.run(f"[...{pair}.querySelectorAll('thead th + th')].map(cell => cell.textContent)") == [first, second]
        assert browser.run(f"{pair}.querySelector('.said').textContent").startswith(f"{first} beats {second}: +")
        command = browser.run(f"{pair}.querySelector('code').textContent")
        best = browser.run("Craft.page.pinned")
        assert command.startswith(
            f"craft-sweeps compare ranks ranks --configuration-a {best} --configuration-b {points[2][0]} "
        )
        assert browser.run("document.documentElement.scrollWidth") <= width
        browser.run(f"[...{pair}.querySelectorAll('button')].at(-1).click()")
        assert browser.run(f"[{pair}.hidden, Craft.page.pinned]") == [True, best]
        assert browser.hosts() == {"file://"}
        assert browser.complaints() == []
