"""The lock and the cache, with a stand-in for Ivy: no network, no JVM."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.jars import ivy
from penstock.jars.fetch import cache_dir, fetch_jars, missing_jars
from penstock.jars.guard import exclusive
from penstock.jars.lock import GROUPS, Coordinate, Jar, load_lock, lock_path, parse_lock, render_lock
from penstock.jars.relock import relock

Content = dict[str, bytes]


def locked(name: str, content: bytes) -> Jar:
    return Jar(Coordinate("org.example", name, "1.0"), hashlib.sha256(content).hexdigest(), len(content), ("engine",))


class Repository:
    """What Ivy would bring: per round a set of files, then nothing more."""

    def __init__(self, *rounds: Content, offline: bool = False) -> None:
        self.rounds, self.asked, self.offline = list(rounds), [], offline

    def run(self, coordinates: Iterable[Coordinate], ivy_cache: Path, **_: Any) -> ivy.Outcome:
        wanted = list(coordinates)
        self.asked.append([c.artifact for c in wanted])
        files = self.rounds.pop(0) if self.rounds else {}
        for coordinate in wanted:
            if coordinate.artifact in files:
                path = ivy.cached(ivy_cache, coordinate)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(files[coordinate.artifact])
        return ivy.Outcome(complete=False, offline=self.offline, tail=("429",))


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Repository]:
    def use(*rounds: Content, offline: bool = False) -> Repository:
        made = Repository(*rounds, offline=offline)
        monkeypatch.setattr(ivy, "run", made.run)
        return made

    return use


A, B = locked("a", b"aaaa"), locked("b", b"bbbb")


@pytest.mark.parametrize("text", ["g:a:1.0", "g.h:a_2.13:4.2.0", "g:a:1:all", "g:a:3.0.9:all@tar.gz", "g:a:1@pom"])
def test_a_coordinate_is_written_as_it_was_read(text: str) -> None:
    assert str(Coordinate.parse(text)) == text


@pytest.mark.parametrize("text", ["", "g:a", "g:a:1:c:d", "g a:b:1", "g:a:../1@jar", "g:a/b:1"])
def test_what_is_no_coordinate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no coordinate"):
        Coordinate.parse(text)


def test_the_shipped_lock_is_complete_and_in_the_form_that_the_tool_writes() -> None:
    lock = load_lock()
    assert render_lock(lock) == lock_path().read_text(encoding="utf-8")
    locked_coordinates = {jar.coordinate for jar in lock.jars}
    for name in GROUPS:
        assert set(lock.roots[name].coordinates) <= locked_coordinates
        assert lock.group(name)
    assert all(len(jar.sha256) == 64 and jar.size > 0 for jar in lock.jars)
    assert len({jar.path for jar in lock.jars}) == len(lock.jars)


def test_a_lock_survives_writing_and_reading() -> None:
    assert parse_lock(render_lock(load_lock())) == load_lock()


def test_the_request_to_ivy_names_classifier_and_extension() -> None:
    xml = ivy.module_xml([Coordinate.parse("g:a:3.0:all@tar.gz")], transitive=False)
    assert '<artifact name="a" type="tar.gz" ext="tar.gz" m:classifier="all"/>' in xml


def test_a_mirror_is_taken_from_the_environment_and_quoted() -> None:
    assert " root=" not in ivy.settings_xml(Path("/c"), poms=False, repository=None)
    assert 'root="http://mirror/?a=1&amp;b=2"' in ivy.settings_xml(
        Path("/c"), poms=False, repository="http://mirror/?a=1&b=2"
    )


def test_fetched_jars_land_in_the_cache_and_are_not_asked_for_again(
    tmp_path: Path, repository: Callable[..., Repository]
) -> None:
    source = repository({"a": b"aaaa", "b": b"bbbb"})
    paths = fetch_jars([A, B], tmp_path)
    assert [path.read_bytes() for path in paths] == [b"aaaa", b"bbbb"]
    assert fetch_jars([A, B], tmp_path) == paths
    assert source.asked == [["a", "b"]]
    assert not (tmp_path / ".ivy").exists()


def test_after_a_refusal_only_the_missing_jars_are_asked_for_after_a_pause(
    tmp_path: Path, repository: Callable[..., Repository]
) -> None:
    source = repository({"a": b"aaaa"}, {}, {"b": b"bbbb"})
    pauses: list[float] = []
    told: list[tuple[int, int, str]] = []
    fetch_jars([A, B], tmp_path, lambda *step: told.append(step), pauses=(1.0, 10.0), wait=pauses.append)
    assert source.asked == [["a", "b"], ["b"], ["b"]]
    assert [round(pause) for pause in pauses] == [1, 1]
    assert any(done == 1 and total == 2 and "busy" in what for done, total, what in told)


def test_pauses_grow_while_nothing_comes_and_then_the_fetch_gives_up(
    tmp_path: Path, repository: Callable[..., Repository]
) -> None:
    source = repository()
    pauses: list[float] = []
    with pytest.raises(PenstockError, match=r"PEN-1004 org\.example:a:1\.0 could not be fetched"):
        fetch_jars([A], tmp_path, pauses=(1.0, 10.0, 100.0), wait=pauses.append)
    assert len(source.asked) == 3
    assert pauses[0] < 2 < 8 <= pauses[1]


def test_without_a_network_the_fetch_gives_up_soon(tmp_path: Path, repository: Callable[..., Repository]) -> None:
    source = repository(offline=True)
    with pytest.raises(PenstockError, match="PEN-1004"):
        fetch_jars([A], tmp_path, pauses=(1.0,) * 9, wait=lambda _: None)
    assert len(source.asked) == 2


def test_a_wrong_checksum_is_an_error_the_file_is_gone_and_the_next_fetch_mends_it(
    tmp_path: Path, repository: Callable[..., Repository]
) -> None:
    repository({"a": b"evil", "b": b"bbbb"})
    with pytest.raises(PenstockError, match=r"PEN-1003 org\.example:a:1\.0 has the SHA-256"):
        fetch_jars([A, B], tmp_path)
    assert list(tmp_path.rglob("a-1.0.jar")) == []
    again = repository({"a": b"aaaa"})
    fetch_jars([A, B], tmp_path)
    assert again.asked == [["a"]], "the good file of the first round is kept"


def test_a_file_that_was_changed_in_the_cache_is_fetched_again(
    tmp_path: Path, repository: Callable[..., Repository]
) -> None:
    repository({"a": b"aaaa"})
    (path,) = fetch_jars([A], tmp_path)
    path.write_bytes(b"xxxx!")
    again = repository({"a": b"aaaa"})
    fetch_jars([A], tmp_path)
    assert path.read_bytes() == b"aaaa"
    assert again.asked == [["a"]]


def test_a_right_file_without_a_mark_is_verified_and_not_fetched(
    tmp_path: Path, repository: Callable[..., Repository]
) -> None:
    repository({"a": b"aaaa"})
    (path,) = fetch_jars([A], tmp_path)
    os.utime(path, (1, 1))
    assert missing_jars([A], tmp_path) == [A]
    again = repository()
    fetch_jars([A], tmp_path)
    assert again.asked == []


def test_a_damaged_mark_file_costs_a_look_at_the_files_and_nothing_else(
    tmp_path: Path, repository: Callable[..., Repository]
) -> None:
    repository({"a": b"aaaa"})
    fetch_jars([A], tmp_path)
    (tmp_path / ".verified.json").write_text("{half")
    again = repository()
    fetch_jars([A], tmp_path)
    assert again.asked == []
    assert missing_jars([A], tmp_path) == []


def test_a_raised_version_in_the_lock_is_not_served_from_the_old_file(
    tmp_path: Path, repository: Callable[..., Repository]
) -> None:
    repository({"a": b"aaaa"})
    fetch_jars([A], tmp_path)
    assert missing_jars([locked("a", b"other")], tmp_path) != []


def test_the_cache_is_moved_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path / "jars"


def test_locking_anew_reports_a_root_that_cannot_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ivy, "run", lambda *_, **__: ivy.Outcome(complete=False, offline=True, tail=("no host",)))
    with pytest.raises(PenstockError, match=r"PEN-1004 .*no host"):
        relock(load_lock())


def test_a_fetch_that_waits_too_long_for_another_process_says_so(
    tmp_path: Path, repository: Callable[..., Repository]
) -> None:
    repository({"a": b"aaaa"})
    with exclusive(tmp_path / ".lock", 1.0), pytest.raises(PenstockError, match="PEN-1004 Another process"):
        fetch_jars([A], tmp_path, patience=0.2)
