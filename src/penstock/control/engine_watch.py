"""The engine process, watched: started, adopted, buried.

Rules
- An engine that answers is found by its endpoint file, whoever started it: a new supervisor adopts it.
- An engine without an endpoint is starting, for a limited time; so is one that only holds the lease "engine".
- An ended engine is reaped, what it left behind is killed, and its open commands have failed, before the next starts.
- An engine that lives but does not renew its lease is frozen, and is ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from penstock import processes
from penstock.control.policy import Policy
from penstock.control.reconcile import EngineView, engine_failed
from penstock.control.sessions import end_session
from penstock.engine import process
from penstock.paths import ProjectPaths
from penstock.store import Store, holder_is_dead, parse_holder

Spawn = Callable[[ProjectPaths], int]
ENGINE_LEASE = "engine"


@dataclass(frozen=True)
class Known:
    """An engine process that was seen."""

    pid: int
    started_at: float  # as `processes` tells it
    since: float  # when it was first seen in this role
    ready: bool


class EngineWatch:
    """Follows the one engine of a project."""

    def __init__(
        self, paths: ProjectPaths, store: Store, policy: Policy, spawn: Spawn, say: Callable[[str], None]
    ) -> None:
        self._paths = paths
        self._store = store
        self._policy = policy
        self._spawn = spawn
        self._say = say
        self._known: Known | None = None
        self._child: int | None = None
        self._exit: str | None = None
        self._silent_since: float | None = None
        self.failures = 0
        self.retry_at: float | None = None
        self.last_exit: str | None = None

    def look(self, now: float, open_since: Mapping[str, float] | None = None) -> EngineView:
        """The engine as it is now."""
        self._reap()
        endpoint = process.read_endpoint(self._paths)
        if self._known and not processes.alive(self._known.pid, self._known.started_at):
            self._ended(self._known, now)
        if endpoint is not None:
            self._seen_ready(endpoint, now)
            if self._frozen(endpoint.engine_token, now):
                self._say(f"engine {endpoint.pid} does not renew its lease; ending it")
                self._end(timeout=5.0)
                self._ended(self._known, now)
                return self._view(now)
            return self._view(now, running=True, token=endpoint.engine_token, open_since=open_since or {})
        if self._known and self._known.ready:  # it withdrew its endpoint and is on its way out
            self._known = replace(self._known, ready=False, since=now)
        if self._known is None:
            self._find_starting(now)
        if self._known and now - self._known.since > self._policy.engine_start_timeout:
            self._say(f"engine {self._known.pid} is not ready after {now - self._known.since:.0f} s; ending it")
            self._end(timeout=5.0)
            self._ended(self._known, now)
        return self._view(now, starting=self._known is not None)

    def start(self, now: float) -> None:
        """Start an engine."""
        pid = self._spawn(self._paths)
        self._child, self._exit = pid, None
        self._known = Known(pid, processes.started_at(pid) or 0.0, now, ready=False)
        self._say(f"engine {pid} started")

    def forgive(self) -> None:
        """Forget the failures: the next start need not wait."""
        self.failures, self.retry_at = 0, None

    def stop(self, timeout: float, now: float) -> None:
        """End the engine, kindly first; nothing of it is left."""
        if self._known is None:
            self.look(now)
        if self._known is None:
            return
        pid = self._known.pid
        self._say(f"ending engine {pid}")
        kindly = self._end(timeout)
        self._say(
            f"engine {pid} ended" if kindly else f"engine {pid} was killed: it did not end within {timeout:.0f} s"
        )
        self._known = None

    # -- inside -------------------------------------------------------------------------------------------------------
    def _view(
        self,
        now: float,
        *,
        running: bool = False,
        starting: bool = False,
        token: int = 0,
        open_since: Mapping[str, float] | None = None,
    ) -> EngineView:
        return EngineView(
            running=running,
            starting=starting,
            token=token,
            failures=self.failures,
            retry_at=self.retry_at,
            open_since=open_since or {},
        )

    def _seen_ready(self, endpoint: process.Endpoint, now: float) -> None:
        if self._known is None or self._known.pid != endpoint.pid:
            self._say(f"engine {endpoint.pid} found running; adopting it (token {endpoint.engine_token})")
            self._known = Known(endpoint.pid, endpoint.started_at, now, ready=True)
        elif not self._known.ready:
            self._say(f"engine {endpoint.pid} is ready (token {endpoint.engine_token})")
            self._known = Known(endpoint.pid, endpoint.started_at, now, ready=True)
        if self.failures and now - self._known.since >= self._policy.engine_healthy_after:
            self.failures, self.retry_at = 0, None

    def _find_starting(self, now: float) -> None:
        lease = self._store.lease(ENGINE_LEASE)
        holder = parse_holder(lease.holder) if lease else None
        if lease is None or holder is None or lease.expires_at < now or holder_is_dead(lease.holder):
            return
        if processes.alive(holder.pid, holder.started_at):
            self._say(f"engine {holder.pid} found starting; waiting for it")
            self._known = Known(holder.pid, holder.started_at, now, ready=False)

    def _frozen(self, token: int, now: float) -> bool:
        lease = self._store.lease(ENGINE_LEASE)
        if lease is None or lease.token != token or lease.expires_at >= now:
            self._silent_since = None
            return False
        # Counted from the moment it was noticed: after a suspended machine every lease looks long expired.
        self._silent_since = now if self._silent_since is None else self._silent_since
        return now - self._silent_since >= self._policy.engine_silence

    def _reap(self) -> None:
        if self._child is None:
            return
        try:
            pid, status = os.waitpid(self._child, os.WNOHANG)
        except ChildProcessError:  # reaped by whoever waited for it
            self._child = None
            return
        if pid:
            code = os.waitstatus_to_exitcode(status)
            self._exit = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._child = None

    def _ended(self, known: Known | None, now: float) -> None:
        if known is None:
            return
        self._reap()
        left = end_session(known.pid)
        self._known, self._silent_since = None, None
        lived = now - known.since if known.ready else None
        self.failures, self.retry_at = engine_failed(self._view(now), lived, now, self._policy)
        self.last_exit = self._exit or "killed"
        self._store.abandon_commands()
        more = f", {left} left-over process(es) killed" if left else ""
        wait = max(0.0, self.retry_at - now)
        self._say(f"engine {known.pid} ended ({self.last_exit}{more}); failure {self.failures}, next in {wait:.1f} s")

    def _end(self, timeout: float) -> bool:
        known = self._known
        if known is None:
            return True
        kindly = processes.terminate(known.pid, known.started_at, timeout)
        self._reap()
        end_session(known.pid)
        return kindly
