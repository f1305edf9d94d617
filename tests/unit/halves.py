"""Tests that several runs of pytest share among them: each takes what nobody has taken, so that all end together.

Whoever starts the runs gives them one empty directory by its name (`SHARED`), and the same tests in the same order,
the dearest first. A run takes a group of tests by making a file there. A group is a file of tests, or all files that
need the same dear fixture: one of the runs has it then, and not each. Without the directory a run has all tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

SHARED = "PENSTOCK_SHARED_TESTS"
DEAR = ("sharing_platform", "wheel")  # fixtures of a whole run


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """As pytest's own loop, which has its turn when this one says nothing, for the tests that this run takes."""
    directory = os.environ.pop(SHARED, None)  # a run that a test starts has tests of its own
    if not directory or session.config.option.collectonly or session.testsfailed:
        return None
    taken = _taken(groups(session.items), Path(directory))
    item = next(taken, None)
    while item is not None:
        following = next(taken, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def groups(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Name of a group -> its tests, in the order of the tests."""
    names: dict[Path, str] = {}
    for item in items:
        dear = [name for name in DEAR if name in getattr(item, "fixturenames", ())]
        if dear or item.path not in names:
            names[item.path] = dear[0] if dear else item.nodeid.partition("::")[0].replace("/", "-")
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        found.setdefault(names[item.path], []).append(item)
    return found


def _taken(groups: dict[str, list[pytest.Item]], directory: Path) -> Iterator[pytest.Item]:
    for name, items in groups.items():
        try:
            (directory / name).touch(exist_ok=False)
        except FileExistsError:
            continue  # another run has it
        yield from items
