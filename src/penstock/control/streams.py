"""Stopping, starting, restarting and dropping a deployed stream.

Rules
- What is wanted is written first, and stays written when the wait for it ends too early.
- Starting or restarting lifts a quarantine.
- Stopping or dropping a stream ends a rebuild beside it. One that is taking over comes to its end first.
- A restart leaves "wanted: running" in place all the time: a caller that dies half-way leaves no stopped stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from penstock.control.requests import rebuilt, run_command, turn
from penstock.control.waiting import Tell, silent, wait_for
from penstock.errors.catalogue import ENGINE_DOWN, STREAM_FAILED, STREAM_QUARANTINED
from penstock.store import Actual, RebuildPhase, Store, StreamState, Wanted

WAIT = 60.0
_ENDED = (StreamState.STOPPED, StreamState.QUARANTINED)


def want(store: Store, stream: str, wanted: Wanted, *, now: float | None = None) -> None:
    """Write down what is wanted of a stream, for whoever carries it out. One that is to stop is not rebuilt."""
    store.set_wanted(stream, wanted, now=now)
    if wanted is Wanted.STOPPED:
        store.end_rebuild(stream, stop=True)


def stop_stream(store: Store, stream: str, *, wait: float = WAIT, progress: Tell | None = None) -> Actual:
    """Stop the stream and keep it stopped; its state when it has."""
    want(store, stream, Wanted.STOPPED)
    return _await(store, stream, lambda found: found.state in _ENDED, wait, progress, "to stop")


def start_stream(store: Store, stream: str, *, wait: float = WAIT, progress: Tell | None = None) -> Actual:
    """Run the stream; its state when it runs. Raises what it failed of."""
    begun = time.time()
    want(store, stream, Wanted.RUNNING, now=begun)
    return _await_run(store, stream, lambda found: True, begun, wait, progress)


def restart_stream(store: Store, stream: str, *, wait: float = WAIT, progress: Tell | None = None) -> Actual:
    """Stop the stream's run and begin a new one."""
    begun = time.time()
    want(store, stream, Wanted.RUNNING, now=begun)
    before = store.actual(stream)
    if before.state in (StreamState.RUNNING, StreamState.STARTING):
        run_command(store, "stop", stream, {}, wait)
    fresh: Callable[[Actual], bool] = lambda found: (found.started_at or 0.0) >= begun  # noqa: E731
    return _await_run(store, stream, fresh, begun, wait, progress)


def restart_runs(store: Store, streams: Iterable[str]) -> tuple[str, ...]:
    """Stop the runs; what is wanted is started again by the supervisor."""
    running = []
    for stream in streams:
        state = store.actual(stream).state
        if store.desired(stream).wanted is Wanted.RUNNING and state in (StreamState.RUNNING, StreamState.STARTING):
            store.submit("stop", stream, {})
            running.append(stream)
    return tuple(running)


def fail_stream(store: Store, stream: str, message: str, *, wait: float = WAIT) -> None:
    """End a stream that is stuck, as a failure: it comes back as after any other, or is quarantined after too many."""
    run_command(store, "fail", stream, {"message": message}, wait)


def drop_stream(store: Store, stream: str, *, wait: float = WAIT, progress: Tell | None = None) -> None:
    """Stop the stream, drop its table and checkpoint, and forget it."""
    with turn(store, progress or silent):
        stop_stream(store, stream, wait=wait, progress=progress)
        await_settled(store, stream, progress or silent, wait)
        run_command(store, "drop", stream, {}, wait)
        store.forget(stream)


def await_settled(store: Store, stream: str, tell: Tell, wait: float = WAIT, *, open_to_readers: bool = False) -> None:
    """Wait for a rebuild that is ending or taking over; one that is only catching up is not waited for.

    With `open_to_readers` one that is about to take over is: nobody can read its new rows until then.
    """
    running = {RebuildPhase.CATCHING_UP, RebuildPhase.SETTLING, RebuildPhase.STANDING, RebuildPhase.FAILED}
    if open_to_readers:
        running -= {RebuildPhase.SETTLING, RebuildPhase.STANDING}

    def settled() -> bool | None:
        rebuild = store.rebuild(stream)
        return True if rebuild is None or rebuild.phase in running else None

    if wait_for(settled, wait, tell=tell, message=f"Waiting for the rebuild of {stream} to end") is None:
        raise ENGINE_DOWN.error(
            f"Waited {wait:.0f} s for the rebuild of '{stream}' to end.",
            hint="It needs supervisor and engine ('penstock up'); 'penstock logs supervisor' says how far it is.",
        )


def _await_run(
    store: Store, stream: str, enough: Callable[[Actual], bool], begun: float, wait: float, progress: Tell | None
) -> Actual:
    def settled(found: Actual) -> bool:
        if found.state is StreamState.RUNNING:
            return enough(found)
        failed = found.state in (StreamState.FAILED, StreamState.QUARANTINED)
        return failed and found.updated_at >= begun

    found = _await(store, stream, settled, wait, progress, "to run")
    if found.state is StreamState.RUNNING:
        return found
    kind = STREAM_QUARANTINED if found.state is StreamState.QUARANTINED else STREAM_FAILED
    raise rebuilt({"code": found.error_code or kind.code, "message": found.error or f"'{stream}' failed."})


def _await(
    store: Store, stream: str, done: Callable[[Actual], bool], wait: float, progress: Tell | None, what: str
) -> Actual:
    def look() -> Actual | None:
        found = store.actual(stream)
        return found if done(found) else None

    found = wait_for(look, wait, tell=progress or silent, message=f"Waiting for {stream} {what}")
    if found is None:
        state = store.actual(stream).state.value
        raise ENGINE_DOWN.error(
            f"Waited {wait:.0f} s for '{stream}' {what}; it is {state}.",
            hint="It is done as soon as the supervisor and the engine run; 'penstock up' starts them.",
        )
    return found
