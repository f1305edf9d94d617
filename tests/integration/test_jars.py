"""The fetcher with the real Ivy against a repository on loopback that serves jars from the user's cache."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.jars import Jar, fetch, load_lock
from penstock.jars.fetch import fetch_jars

FETCH_ENGINE = "from penstock.jars import fetch; print(len(fetch('engine')))"
ENGINE_JARS = len(load_lock().group("engine"))


class Mirror:
    """A repository: `refuse` files are answered with 429 that many times, `forged` ones with other bytes."""

    def __init__(self) -> None:
        self.files = dict(zip((_url(jar) for jar in load_lock().group("engine")), fetch("engine"), strict=True))
        self.refuse: dict[str, int] = {}
        self.forged: set[str] = set()
        self.downloads: list[str] = []
        self.refusals = 0
        self._guard = threading.Lock()

    def answer(self, method: str, path: str) -> tuple[int, bytes]:
        with self._guard:
            if self.refuse.get(path, 0) > 0:
                self.refuse[path] -= 1
                self.refusals += 1
                return 429, b"slow down"
            if path not in self.files:
                return 404, b"no such file"
            if method == "GET":
                self.downloads.append(path)
            return 200, b"forged" if path in self.forged else self.files[path].read_bytes()


def _url(jar: Jar) -> str:
    c = jar.coordinate
    return f"/{c.group.replace('.', '/')}/{c.artifact}/{c.version}/{c.file_name}"


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    served = Mirror()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self, *, body: bool) -> None:
            status, content = served.answer(self.command, self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def do_GET(self) -> None:
            self._serve(body=True)

        def do_HEAD(self) -> None:
            self._serve(body=False)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the test looks at what was asked."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("PENSTOCK_MAVEN_REPOSITORY", f"http://127.0.0.1:{server.server_port}/")
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def small() -> list[Jar]:
    """The three smallest jars of the engine."""
    return sorted(load_lock().group("engine"), key=lambda jar: jar.size)[:3]


def test_a_repository_that_answers_429_gets_pauses_and_is_asked_only_for_what_is_missing(
    mirror: Mirror, small: list[Jar], tmp_path: Path
) -> None:
    mirror.refuse = {_url(small[0]): 2, _url(small[1]): 1}
    pauses: list[float] = []
    paths = fetch_jars(small, tmp_path, pauses=(0.1, 0.2, 0.4), wait=pauses.append)
    assert [path.stat().st_size for path in paths] == [jar.size for jar in small]
    assert mirror.refusals == 3
    assert pauses, "no pause was made"
    assert sorted(mirror.downloads) == sorted(_url(jar) for jar in small), "each file was downloaded once"


def test_a_fetch_that_was_cut_short_goes_on_where_it_was(mirror: Mirror, small: list[Jar], tmp_path: Path) -> None:
    mirror.refuse = {_url(small[0]): 100}
    with pytest.raises(PenstockError, match=f"PEN-1004 {small[0].coordinate}"):
        fetch_jars(small, tmp_path, pauses=(0.0,), wait=lambda _: None)
    mirror.refuse, mirror.downloads = {}, []
    fetch_jars(small, tmp_path)
    assert mirror.downloads == [_url(small[0])]


def test_a_forged_jar_is_removed_and_named(mirror: Mirror, small: list[Jar], tmp_path: Path) -> None:
    mirror.forged = {_url(small[1])}
    with pytest.raises(PenstockError, match="PEN-1003") as caught:
        fetch_jars(small, tmp_path)
    assert str(small[1].coordinate) in caught.value.message
    assert not list(tmp_path.rglob(small[1].coordinate.file_name))
    mirror.forged = set()
    assert len(fetch_jars(small, tmp_path)) == 3


def test_several_processes_at_once_download_each_file_once(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    command = [sys.executable, "-c", FETCH_ENGINE]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    ended = [process.communicate(timeout=120) for process in running]
    assert [out.strip() for out, _ in ended] == [str(ENGINE_JARS)] * 3, ended
    assert len(mirror.downloads) == len(set(mirror.downloads)) == ENGINE_JARS


def test_in_a_pipe_the_command_prints_plain_lines_and_is_silent_when_all_is_there(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("broker", "registry"):
        mirror.files |= dict(zip((_url(jar) for jar in load_lock().group(group)), fetch(group), strict=True))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))

    def command() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock.jars"], capture_output=True, text=True, timeout=120, check=True
        )

    first = command()
    assert f"jars for the engine: {ENGINE_JARS}/{ENGINE_JARS}" in first.stderr
    assert "\x1b[" not in first.stderr
    second = command()
    assert (second.stdout, second.stderr) == ("", "")


def test_a_full_cache_is_answered_in_a_few_milliseconds() -> None:
    fetch("engine")
    fetch("broker")
    assert _quickest(lambda: (fetch("engine"), fetch("broker"))) < 0.1


def _quickest(action: Callable[[], object], rounds: int = 3) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)
