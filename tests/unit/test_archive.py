"""The archive of the engine's classes: used when it is there, never in the way."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from penstock.engine import archive
from penstock.jars import java


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The place of the archive in an environment of the test's own, with spaces in its path."""
    monkeypatch.setattr("sys.prefix", str(tmp_path / "my env"))
    return archive.path()


def test_without_an_archive_the_jvm_starts_as_it_always_did(made: Path) -> None:
    assert archive.options() == ""


def test_an_archive_that_is_there_is_used_and_one_that_does_not_fit_is_no_harm(made: Path) -> None:
    made.parent.mkdir(parents=True)
    made.write_bytes(b"not an archive at all")
    options = shlex.split(archive.options())
    assert f"-XX:SharedArchiveFile={made}" in options
    done = subprocess.run([str(java().path), *options, "-version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "version" in done.stderr
