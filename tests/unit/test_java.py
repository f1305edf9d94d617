"""Which Java is taken, and what is said when there is none or a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.jars.java import java, parse_major

OPENJDK_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)\n'


def fake_java(directory: Path, version: str, *, status: int = 0) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "java"
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "major"),
    [
        (OPENJDK_17, 17),
        ('java version "1.8.0_402"\n', 8),
        ('openjdk version "21" 2023-09-19\n', 21),
        ('openjdk version "25-ea" 2025-09-16\n', 25),
        ("Picked up JAVA_TOOL_OPTIONS: -Xmx1g\n" + OPENJDK_17, 17),
        ("bash: java: command not found\n", None),
    ],
)
def test_the_major_version_is_read_from_the_output_of_java(text: str, major: int | None) -> None:
    assert parse_major(text) == major


def test_java_home_is_taken_before_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home" / "bin", "21.0.2")
    fake_java(tmp_path / "bin", "17.0.1")
    found = java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "bin")})
    assert (found.path, found.major) == (home, 21)


def test_java_on_the_path_is_taken_without_java_home(tmp_path: Path) -> None:
    path = fake_java(tmp_path / "bin", "17.0.1")
    found = java({"PATH": str(tmp_path / "bin")})
    assert (found.path, found.major) == (path, 17)


def test_no_java_anywhere_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"PEN-1001 .*Install Java 17 or 21"):
        java({"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_an_error_even_if_the_path_has_one(tmp_path: Path) -> None:
    fake_java(tmp_path / "bin", "17.0.1")
    with pytest.raises(PenstockError, match=r"PEN-1001 JAVA_HOME=.* has no bin/java"):
        java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path / "bin")})


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", 8), ("11.0.22", 11), ("22.0.1", 22), ("25", 25)])
def test_another_version_than_17_and_21_is_an_error_that_names_it(tmp_path: Path, version: str, major: int) -> None:
    fake_java(tmp_path / "bin", version)
    with pytest.raises(PenstockError, match=rf"PEN-1002 .* is Java {major}\."):
        java({"PATH": str(tmp_path / "bin")})


def test_a_java_that_does_not_start_counts_as_missing(tmp_path: Path) -> None:
    fake_java(tmp_path / "bin", "17.0.1", status=1)
    with pytest.raises(PenstockError, match="PEN-1001"):
        java({"PATH": str(tmp_path / "bin")})
