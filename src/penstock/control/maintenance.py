"""Asking the engine to maintain tables now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.control.requests import run_command
from penstock.control.waiting import Tell, silent
from penstock.store import Store

TIMEOUT = 1800.0  # a large table takes its time


def maintain(store: Store, streams: Sequence[str], progress: Tell | None = None) -> list[dict[str, Any]]:
    """What was done to the table of each stream; streams without a table yet are left out."""
    tell = progress or silent
    done = []
    for stream in streams:
        tell(f"maintaining {stream}")
        found = run_command(store, "maintain", stream, {}, TIMEOUT)
        done += [found] if found.get("table") else []
    return done
