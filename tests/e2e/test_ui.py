"""The web UI as a person uses it: a real browser, real streams, a real broker.

Screenshots of each step are kept below target/screenshots/.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.control.supervisor import read_running
from penstock.engine.process import read_endpoint
from penstock.paths import ProjectPaths

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "There is no Chromium" if CHROMIUM is None else None
try:
    from playwright import sync_api
except ModuleNotFoundError:
    MISSING = "There is no Playwright"
pytestmark = [pytest.mark.timeout(900), pytest.mark.deep]
ROOT = Path(__file__).parents[2]
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
SCREENSHOTS = ROOT / "target" / "screenshots"
ASSETS = (
    "clicks", "products", "clicks_clean", "co_views", "also_viewed", "item_v…_per_minute", "recommendations",
    "supervisor", "engine", "broker", "registry",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _browser() -> None:
    """Asked when these tests run, not when they are collected: `make test` leaves them out, and needs no browser."""
    if MISSING and os.environ.get("CI"):
        pytest.fail(f"{MISSING}, and CI has to run the browser tests; tools/browser.sh installs it.", pytrace=False)
    if MISSING:
        pytest.skip(f"{MISSING}: the browser tests are skipped; tools/browser.sh installs it on Debian.")


def penstock(project: Path, *args: str, **more: Any) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DBT_", "PENSTOCK_KAFKA"))}
    return subprocess.Popen([PENSTOCK, *args], cwd=project, env=kept, text=True, start_new_session=True, **more)


def done(process: subprocess.Popen[str], timeout: float = 300) -> None:
    said, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, said


def end(process: subprocess.Popen[str]) -> int:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    return process.wait(timeout=60)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The demo's project, up, with clicks coming in; nothing is deployed but the seed."""
    copy = tmp_path_factory.mktemp("ui") / "shop"
    copy.mkdir()
    shutil.copy(ROOT / "dbt_project.yml", copy)
    for name in ("models", "sources", "seeds", "profiles"):
        shutil.copytree(ROOT / name, copy / name)
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        done(penstock(copy, "up", **pipe))
        clicks = penstock(copy, "generate", "--rate", "15", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        done(penstock(copy, "seed", **pipe))
        yield copy
        end(clicks)
    finally:
        done(penstock(copy, "down", **pipe))


@pytest.fixture(scope="module")
def ui(project: Path) -> Iterator[str]:
    """`penstock ui`, open; its address."""
    process = penstock(project, "ui", "--port", "0", "--output", "json", stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        said = ""
        while line := process.stdout.readline():
            said += line
            if line == "}\n":
                break
        assert said, (project / ".penstock/logs/ui.log").read_text()[-3000:]
        yield json.loads(said)["url"]
    finally:
        assert end(process) == 0
    deadline = time.monotonic() + 10
    while left := [
        p
        for p in psutil.process_iter(["cmdline", "cwd"])
        if "penstock.dagster.location" in (p.info["cmdline"] or []) and p.info["cwd"] == str(project)
    ]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


class Browser:
    """A page of the UI, and waiting for what it shows."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.address = address

    def open(self, path: str) -> None:
        self.page.goto(self.address + path, wait_until="domcontentloaded")

    def text(self) -> str:
        return str(self.page.inner_text("body"))

    def until(
        self,
        shown: Callable[[], bool],
        what: str,
        timeout: float = 120,
        path: str | None = None,
        last: Callable[[], object] = lambda: "",
    ) -> None:
        """Wait for something on the page, opening it again from time to time when a path is given."""
        deadline = time.monotonic() + timeout
        opened = time.monotonic()
        while not shown():
            if time.monotonic() > deadline:
                self.shoot("failed")
                pytest.fail(f"waited {timeout} s for {what}; last: {last()}; the page says: {self.text()[:2000]}")
            if path and time.monotonic() - opened > 15:
                self.open(path)
                opened = time.monotonic()
            self.page.wait_for_timeout(250)

    def shoot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(SCREENSHOTS / f"{name}.png"))

    def ask(self, query: str, **variables: Any) -> Any:
        """The UI's own API, for what a picture cannot tell."""
        body = {"query": query, "variables": variables}
        return self.page.request.post(f"{self.address}/graphql", data=body).json()["data"]


@pytest.fixture(scope="module")
def browser(ui: str) -> Iterator[Browser]:
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(30_000)
        yield Browser(page, ui)
        chromium.close()


TABLES = ("clicks_clean", "co_views", "also_viewed", "item_views_per_minute", "recommendations")
CHECKS = """query C { assetNodes { assetKey { path }
  assetChecksOrError { ... on AssetChecks { checks { name } } } } }"""
RESULT = """query R($key: AssetKeyInput!, $name: String!) {
  assetCheckExecutions(assetKey: $key, checkName: $name, limit: 1) { status } }"""
CHECK = "/assets/clicks_clean?view=checks&checkDetail=health"
MATERIALISED = """query M($key: AssetKeyInput!) { assetOrError(assetKey: $key) { ... on Asset {
  assetMaterializations(limit: 100) { timestamp metadataEntries { label } } } } }"""
POINTS = """query P($key: AssetKeyInput!) { assetOrError(assetKey: $key) { ... on Asset {
  assetObservations(limit: 100) { metadataEntries { label ... on IntMetadataEntry { intValue } } } } } }"""


def test_an_operators_day_in_the_browser(project: Path, browser: Browser) -> None:
    # -- the graph shows every asset
    _open_graph(browser)

    browser.page.set_viewport_size({"width": 1280, "height": 800})

    # -- materialise one: it deploys, waits for the first batch and says what became of it
    browser.open("/assets/clicks_clean")
    browser.page.get_by_role("button", name="Materialize").first.click()
    sure = browser.page.get_by_role("button", name="Confirm")
    launched = browser.page.get_by_text("Launched run")
    browser.until(lambda: sure.count() > 0 or launched.count() > 0, "the launch")
    if sure.count():  # the seed was loaded a moment ago, and Dagster may not have been told yet
        sure.first.click()
    key = {"path": ["clicks_clean"]}
    browser.until(lambda: _deployed(browser.ask(MATERIALISED, key=key)) is not None, "the deployment", 240)
    browser.open(f"/assets/clicks_clean?view=events&time={_deployed(browser.ask(MATERIALISED, key=key))}")
    browser.until(lambda: "first_batch" in browser.text(), "the materialisation with its metadata")
    said = browser.text()
    assert "NEW" in said
    assert "committed" in said or "none yet" in said, "at the deadline a run ends without its first batch"
    assert "job.py" in said
    assert "http://127.0.0.1:" in said, "the link to Spark's UI"
    browser.shoot("materialised")
    browser.open("/runs")
    browser.until(lambda: "Success" in browser.text(), "the run's success")

    # -- green, then red when engine and supervisor are killed, then green again with nobody's help but Dagster's
    browser.open(CHECK)
    browser.until(lambda: _state(browser) == "Succeeded", "a green check", 60, CHECK)
    # what is deployed, and what it runs on, is green altogether: no check is left without a result
    browser.until(lambda: not _not_green(browser), "all checks to be green", 240, last=lambda: _not_green(browser))
    assert {
        "clicks_clean/health",
        "clicks_clean/lag",
        "penstock/supervisor/restarts",
        "penstock/registry/health",
    } <= set(_results(browser))
    paths = ProjectPaths(project)
    supervisor, engine = read_running(paths), read_endpoint(paths)
    assert supervisor is not None
    assert engine is not None
    for pid in (supervisor.pid, engine.pid):
        os.kill(pid, signal.SIGKILL)
    browser.until(lambda: _state(browser) == "Failed", "a red check", 60, CHECK)
    browser.until(lambda: "what_to_do" in browser.text(), "what to do about it", 30, CHECK)
    browser.shoot("red")
    browser.until(lambda: _state(browser) == "Succeeded", "a green check again", 240, CHECK)
    assert (again := read_endpoint(paths)) is not None
    assert again.pid != engine.pid
    browser.shoot("green")

    # -- the plots have points
    browser.until(lambda: len(_lags(browser.ask(POINTS, key=key))) >= 2, "two points of the lag", 120)
    browser.open("/assets/clicks_clean")
    plots = browser.page.get_by_role("button", name="Plots")
    browser.until(lambda: plots.count() > 0, "the button of the plots")
    plots.first.click()
    browser.until(lambda: browser.page.locator("canvas").count() >= 3, "plots")
    browser.page.get_by_text("lag_rows", exact=True).last.evaluate("e => e.scrollIntoView({block: 'start'})")
    browser.until(lambda: browser.page.evaluate(_INK) > 50, "ink on the plots")
    browser.shoot("plots")

    # -- with everything deployed, the graph is green
    done(penstock(project, "run", stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    browser.until(lambda: all(_has_rows(browser, name) for name in TABLES), "news of every table", 180)
    _open_graph(browser)
    browser.page.get_by_text("Hide navigation").first.click()
    browser.page.set_viewport_size({"width": 1400, "height": 1250})
    browser.page.mouse.dblclick(1300, 740)  # beside the graph: all of it is put into the window
    browser.page.wait_for_timeout(2500)  # it glides into its place: for the picture only
    browser.shoot("graph")


def _open_graph(browser: Browser) -> None:
    browser.page.set_viewport_size({"width": 1400, "height": 900})
    browser.open("/asset-groups")
    nodes = browser.page.locator("svg foreignObject")
    browser.until(lambda: nodes.count() >= 3, "the groups")
    if nodes.count() < len(ASSETS):  # it remembers which groups are open
        browser.page.keyboard.press("Alt+e")
    browser.until(lambda: set(ASSETS) <= set(_names(nodes)), "every asset in the graph")


def _results(browser: Browser) -> dict[str, str | None]:
    """Check -> its last result, of what is deployed and what it runs on."""
    found = {}
    for node in browser.ask(CHECKS)["assetNodes"]:
        path = node["assetKey"]["path"]
        if path == ["clicks_clean"] or path[0] == "penstock":
            for check in node["assetChecksOrError"].get("checks", []):
                last = browser.ask(RESULT, key={"path": path}, name=check["name"])["assetCheckExecutions"]
                found["/".join([*path, check["name"]])] = last[0]["status"] if last else None
    return found


def _has_rows(browser: Browser, name: str) -> bool:
    return bool(browser.ask(MATERIALISED, key={"path": [name]})["assetOrError"].get("assetMaterializations"))


def _names(nodes: Any) -> list[str]:
    return [text for node in nodes.all() for text in node.locator("div").first.all_text_contents()] + [
        name for text in nodes.all_text_contents() for name in ASSETS if text.startswith(name)
    ]


_STATES = ("Succeeded", "Failed")


def _not_green(browser: Browser) -> dict[str, str | None]:
    return {name: status for name, status in _results(browser).items() if status != "SUCCEEDED"}


def _state(browser: Browser) -> str | None:
    """What the list of checks says of `health`."""
    lines = [line.strip() for line in browser.text().splitlines() if line.strip()]
    for position, line in enumerate(lines[:-2]):
        if line == "health" and lines[position + 1] in ("health", *_STATES):
            return next((each for each in lines[position + 1 : position + 3] if each in _STATES), None)
    return None


def _deployed(data: Any) -> str | None:
    """When a run deployed it; beside that, the stream itself tells of new rows."""
    found = data["assetOrError"].get("assetMaterializations") or []
    return next((each["timestamp"] for each in found if "first_batch" in str(each["metadataEntries"])), None)


def _lags(data: Any) -> list[int]:
    found = [entry for each in data["assetOrError"]["assetObservations"] for entry in each["metadataEntries"]]
    return [entry["intValue"] for entry in found if entry["label"] == "lag_rows"]


_INK = """() => [...document.querySelectorAll('canvas')].reduce((most, canvas) => {
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let blue = 0;
  for (let i = 0; i < pixels.length; i += 4)
    if (pixels[i + 3] > 100 && pixels[i + 2] > 150 && pixels[i] < 120) blue++;
  return Math.max(most, blue);
}, 0)"""
