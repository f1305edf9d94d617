"""Asking the engine, and taking turns.

Rules
- A question has a deadline; when nobody waits for the answer any more, the question is withdrawn.
- One process at a time changes deployments; threads of one process take their turn among themselves, however long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.control.engine_watch import ENGINE_LEASE
from penstock.control.waiting import Tell, wait_for
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import ALL, DEPLOY_BUSY, ENGINE_DOWN, STREAM_FAILED
from penstock.store import Store, holder_id, holder_is_dead, holder_name

LEASE = "deploy"
LEASE_TTL = 60.0  # a dead holder on this host is noticed at once; this is for other hosts
BUSY_TIMEOUT = 60.0
COMMAND_TIMEOUT = 120.0
ENGINE_GRACE = 15.0  # without any engine in sight

_turn = threading.Lock()


def run_command(
    store: Store, kind: str, stream: str, payload: dict[str, Any], timeout: float = COMMAND_TIMEOUT
) -> dict[str, Any]:
    """Ask the engine and wait for its answer; its error is raised here as if it had happened here."""
    number = store.submit(kind, stream, payload)
    deadline = time.monotonic() + timeout
    seen = time.monotonic()
    while True:
        command = store.command(number)
        if command is not None and command.state == "done":
            return command.result or {}
        if command is not None and command.state == "failed":
            raise rebuilt(command.result or {})
        now = time.monotonic()
        if store.live_lease(ENGINE_LEASE) is not None:
            seen = now
        if now >= deadline or now - seen >= ENGINE_GRACE:
            error = ENGINE_DOWN.error(f"The engine did not answer to '{kind}' of '{stream}' within {timeout:.0f} s.")
            store.finish(number, ok=False, result=dict(error.as_dict()))  # nobody waits for it: it must not run later
            raise error
        time.sleep(0.05)


def rebuilt(error: dict[str, Any]) -> PenstockError:
    """The error that an engine wrote into the store."""
    kind = ALL.get(str(error.get("code")), STREAM_FAILED)
    at = Location(str(error["file"]), error.get("line")) if error.get("file") else None
    hint = error.get("hint")
    return kind.error(str(error.get("message") or kind.title), at=at, hint=str(hint) if hint else None)


@contextmanager
def turn(store: Store, tell: Tell, timeout: float = BUSY_TIMEOUT) -> Iterator[None]:
    """The project's one turn to change deployments; PEN-3003 when it does not come in time."""
    with _turn:
        me = holder_id()
        lease = wait_for(
            lambda: store.acquire(LEASE, me, LEASE_TTL, dead=holder_is_dead),
            timeout,
            tell=tell,
            message="Waiting for another deployment to end",
            poll=0.1,
        )
        if lease is None:
            other = store.lease(LEASE)
            who = holder_name(other.holder) if other else "another process"
            raise DEPLOY_BUSY.error(f"Another deployment is under way ({who}); waited {timeout:.0f} s.")
        try:
            with store.kept(lease, LEASE_TTL, LEASE_TTL / 4):  # a takeover that is waited for may take long
                yield
        finally:
            store.release(lease)
