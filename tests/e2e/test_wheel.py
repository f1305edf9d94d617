"""The wheel, installed into a clean environment, outside the checkout: from `penstock init` to rows.

The environment has nothing but the wheel; the packages it depends on are borrowed from the environment of this run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.needs_engine, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]

WHERE = """
import json, importlib.metadata, pathlib
import dbt.adapters.penstock, dbt.include.penstock, penstock
include = pathlib.Path(dbt.include.penstock.__file__).parent
print(json.dumps({
    "penstock": penstock.__file__,
    "adapter": dbt.adapters.penstock.__file__,
    "macros": sorted(str(path.relative_to(include)) for path in include.rglob("*.sql")),
    "include": str(include),
    "version": importlib.metadata.version("penstock"),
}))
"""


class Clean:
    """A virtual environment and a directory to work in."""

    def __init__(self, home: Path, directory: str = ".") -> None:
        self.bin = home / "venv" / "bin"
        self.directory = home / directory
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DBT_", "PENSTOCK_KAFKA"))}
        for name in ("PYTHONPATH", "VIRTUAL_ENV"):
            kept.pop(name, None)
        self.environment = kept | {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "DO_NOT_TRACK": "1"}

    def run(self, *words: str, code: int = 0, timeout: float = 300) -> str:
        done = subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.run("penstock", *words, "--output", "json"))

    def streams(self) -> dict[str, dict[str, Any]]:
        return {stream["name"]: stream for stream in self.json("status")["streams"]}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    home = tmp_path_factory.mktemp("wheel")
    python(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(home / "dist"), str(ROOT))
    (wheel,) = (home / "dist").glob("penstock-*.whl")
    python(sys.executable, "-m", "venv", str(home / "venv"))
    made = Clean(home)
    python(str(made.bin / "python"), "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel))
    site = Path(made.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    borrowed = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    # Plain paths: the .pth files of the other environment, among them the checkout's own, are not followed.
    (site / "borrowed.pth").write_text("".join(f"{path}\n" for path in dict.fromkeys(borrowed)))
    (made.bin / "dbt").write_text(
        f"#!{made.bin / 'python'}\nimport sys\nfrom dbt.cli.main import cli\nsys.exit(cli())\n"
    )
    (made.bin / "dbt").chmod(0o755)
    return made


def python(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr


def until(condition: Callable[[], Any], what: str, last: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}; last: {last()}"
        time.sleep(0.2)


def processes_of(directory: Path) -> list[psutil.Process]:
    running = psutil.process_iter(["cmdline"])
    return [each for each in running if any(str(directory) in word for word in each.info["cmdline"] or [])]


def test_everything_comes_from_the_wheel(clean: Clean) -> None:
    found = json.loads(clean.run("python", "-c", WHERE))
    for part in ("penstock", "adapter", "include"):
        assert found[part].startswith(str(clean.directory / "venv")), found
    assert "macros/materializations/dynamic_table.sql" in found["macros"]
    assert found["version"] in clean.run("penstock", "--version")
    assert (clean.bin / "penstock").read_text().startswith(f"#!{clean.bin / 'python'}")


def test_a_new_project_streams_and_leaves_nothing_behind(clean: Clean) -> None:
    clean.run("penstock", "init", "shop")
    clean = Clean(clean.directory, "shop")
    try:
        clean.run("penstock", "up")
        clean.run("dbt", "run")
        assert clean.json("generate", "--count", "500", "--rate", "0")
        until(
            lambda: all(s["state"] == "running" and s["lag_rows"] == 0 for s in clean.streams().values()),
            "both streams running without lag", clean.streams,
        )  # fmt: skip
        before = clean.streams()
        assert set(before) == {"shop.clicks_clean", "shop.views_per_item"}
        counts = (
            "select (select count(*) from clicks_clean) as clicks, (select sum(views) from views_per_item) as views"
        )
        (row,) = clean.json("query", counts)
        assert row["clicks"] == 500
        assert 0 < row["views"] <= 500

        clean.run("dbt", "run")
        results = json.loads((clean.directory / "target" / "run_results.json").read_text())["results"]
        assert [each["adapter_response"]["verdict"] for each in results] == ["NO-OP", "NO-OP"]
        after = clean.streams()
        assert {name: stream["started_at"] for name, stream in after.items()} == {
            name: stream["started_at"] for name, stream in before.items()
        }
        running = processes_of(clean.directory)
        ports = {c.laddr.port for p in running for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
        assert len(running) >= 4  # broker, supervisor, engine and its JVM
        assert len(ports) >= 3
    finally:
        clean.run("penstock", "down")
    left = lambda: processes_of(clean.directory)  # noqa: E731
    until(lambda: not left(), "no process of the project", left, 30)
    taken = {c.laddr.port for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert not ports & taken
