"""The engine's process: one Spark application, told what to do through the store.

Rules
- It holds the lease "engine"; the lease's token fences everything it writes. A lost lease ends the process at once.
- Commands are taken in their order; `prepare` runs beside the others so that a slow model delays no restart.
- SIGTERM and SIGINT stop every stream, then Spark, then give the lease back.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from py4j.protocol import Py4JError
from sqlalchemy.exc import SQLAlchemyError

from penstock import processes
from penstock.compiler.spec import KafkaInput, StreamSpec
from penstock.engine import process, session, tables
from penstock.engine.follow import Follows
from penstock.engine.maintenance import Maintenance
from penstock.engine.streams import Streams
from penstock.engine.topic_views import TopicViews
from penstock.errors import ExitCode, PenstockError
from penstock.errors.catalogue import ENGINE_START, LEASE_LOST, QUERY_FAILED, STREAM_FAILED, STREAM_STUCK
from penstock.paths import ProjectPaths
from penstock.project.profile import read_settings
from penstock.store import Command, Lease, RebuildPhase, Store
from penstock.store.holder import holder_id, holder_name

log = logging.getLogger("penstock.engine")

LEASE = "engine"
LEASE_TTL = 15.0
RENEW_EVERY = 3.0
POLL = 0.1


class Engine:
    """Takes commands and carries them out until it is told to end."""

    def __init__(
        self,
        store: Store,
        streams: Streams,
        views: TopicViews,
        follows: Follows,
        maintenance: Maintenance,
        lease: Lease,
        stop: threading.Event,
        jvm: subprocess.Popen[bytes],
    ) -> None:
        self._store = store
        self._streams = streams
        self._views = views
        self._follows = follows
        self._maintenance = maintenance
        self._lease = lease
        self._stop = stop
        self._jvm = jvm
        self._renewed = time.monotonic()
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="command")
        self._trouble = ""  # of the store, as it was last logged
        self._turns: dict[str, threading.Lock] = {}  # commands of one stream one after the other

    def run(self) -> bool:
        """Until it is told to stop (True) or the lease is lost (False)."""
        kept = True
        while kept and not self._stop.wait(POLL):
            kept = self._tick()
        self._pool.shutdown(wait=False, cancel_futures=True)
        return kept

    def _tick(self) -> bool:
        if self._jvm.poll() is not None:
            self._give_up(f"the JVM ended with {self._jvm.returncode}")
        try:
            if time.monotonic() - self._renewed >= RENEW_EVERY:
                if self._store.renew(self._lease, LEASE_TTL) is None:
                    log.error("%s", LEASE_LOST.error("Another engine took over this project."))
                    return False
                self._renewed = time.monotonic()
                self._streams.check()
                self._views.check()
                for stream in self._streams.lonely():
                    self._pool.submit(self._share, stream, self._turns.setdefault(stream, threading.Lock()))
            for command in self._store.take_commands():
                # Maintenance looks after itself, and must not keep a stream from being stopped.
                own = threading.Lock() if command.kind == "maintain" else None
                turn = own or self._turns.setdefault(command.stream, threading.Lock())
                self._pool.submit(self._answer, command, turn)
        except Py4JError:
            self._give_up("the JVM does not answer any more")
        except (PenstockError, SQLAlchemyError) as problem:
            if str(problem) != self._trouble:
                log.exception("the store could not be used")
            self._trouble = str(problem)
            return time.monotonic() - self._renewed <= LEASE_TTL
        self._trouble = ""
        return True

    def _give_up(self, why: str) -> NoReturn:
        """Go at once: what could be stopped cleanly is gone. The supervisor starts a new engine."""
        log.critical("%s; the engine ends", why)
        _exit(ExitCode.FAILED)

    def _answer(self, command: Command, turn: threading.Lock) -> None:
        with turn:
            try:
                result = self._carry_out(command)
            except PenstockError as problem:
                self._finish(command, ok=False, result=problem.as_dict())
            except Exception as problem:
                log.exception("command %s for %s failed", command.kind, command.stream)
                kind = STREAM_FAILED if command.kind in ("start", "adjust", "stop", "drop") else QUERY_FAILED
                self._finish(
                    command, ok=False, result=kind.error(f"{command.stream}: {_first_line(problem)}").as_dict()
                )
            else:
                self._finish(command, ok=True, result=result)

    def _share(self, stream: str, turn: threading.Lock) -> None:
        with turn:
            try:
                self._streams.share(self._store.desired(stream))
            except Exception:
                log.exception("%s could not be moved to a shared reading", stream)

    def _finish(self, command: Command, *, ok: bool, result: dict[str, Any]) -> None:
        try:
            self._store.finish(command.id, ok=ok, result=result)
        except (PenstockError, SQLAlchemyError):
            log.exception("command %s could not be answered", command.id)

    def _carry_out(self, command: Command) -> dict[str, Any]:
        match command.kind:
            case "prepare":
                spec = StreamSpec.from_json(command.payload["spec"])
                full_refresh, dry = (bool(command.payload.get(option)) for option in ("full_refresh", "dry"))
                return self._streams.prepare(spec, full_refresh=full_refresh, dry=dry)
            case "start":
                self._streams.start(self._store.desired(command.stream))
                return {}
            case "adjust":
                self._streams.adjust(self._store.desired(command.stream))
                return {}
            case "stop":
                self._streams.stop(command.stream)
                return {}
            case "fail":
                self._streams.fail(command.stream, STREAM_STUCK.error(str(command.payload["message"])))
                return {}
            case "drop":
                return self._streams.drop(command.stream, self._store.desired(command.stream))
            case "takeover":
                return self._streams.take_over(
                    [
                        (self._store.desired(each["stream"]), StreamSpec.from_json(each["spec"]), each["checkpoint"])
                        for each in command.payload["members"]
                    ]
                )
            case "discard":
                kept = command.payload["phase"] == RebuildPhase.TAKEN_OVER.value
                spec = StreamSpec.from_json(command.payload["spec"])
                return self._streams.discard(spec, None if kept else str(command.payload["checkpoint"]))
            case "source":
                return {"properties": self._views.register(KafkaInput.model_validate_json(command.payload["spec"]))}
            case "drop_source":
                self._views.drop(command.stream)
                return {}
            case "follow":
                self._follows.start(StreamSpec.from_json(command.payload["spec"]), command.payload["socket"])
                return {}
            case "replay":
                where, dry = command.payload.get("where"), bool(command.payload.get("dry"))
                return self._streams.replay(self._store.desired(command.stream), where=where, dry=dry)
            case "maintain":
                done = self._maintenance.maintain(self._store.desired(command.stream), enough=2)
                return done.as_dict() if done is not None else {}
            case other:
                raise QUERY_FAILED.error(f"The engine knows no command '{other}'.", hint="Update Penstock.")


def _first_line(problem: BaseException) -> str:
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]


def _acquire(store: Store) -> Lease:
    """The engine's lease; a dead engine's is taken over, a living one's is waited for a moment."""
    deadline = time.monotonic() + LEASE_TTL + 5
    while True:
        lease = store.steal(LEASE, holder_id(), LEASE_TTL)
        if lease is not None:
            return lease
        if time.monotonic() > deadline:
            held = store.lease(LEASE)
            raise ENGINE_START.error(
                f"Another engine runs for this project ({holder_name(held.holder) if held else 'unknown'})."
            )
        time.sleep(0.2)


def run(paths: ProjectPaths) -> ExitCode:
    """The whole life of the engine."""
    settings = read_settings(paths)
    store = Store.open(settings.store or paths.store)
    lease = _acquire(store)
    stop = threading.Event()
    _end_on_signals(stop)
    store.abandon_commands()
    token = secrets.token_urlsafe(24)
    port = session.free_port(settings.engine.port)
    began = time.monotonic()
    with store.kept(lease, LEASE_TTL, RENEW_EVERY):  # starting Spark may take longer than the lease lives
        spark = session.create(paths, settings, port=port, token=token)
        spark.sql("SHOW SCHEMAS").collect()  # opens the catalog now, not under the first user's feet
    _end_on_signals(stop)  # again: Spark has put a handler of its own in the place of SIGINT's
    streams = Streams(spark, store, paths, lease.token)
    views = TopicViews(spark, store, paths)
    with store.kept(lease, LEASE_TTL, RENEW_EVERY):
        views.restore()
    maintenance = Maintenance(store, paths, settings.maintenance, partial(tables.find, spark), streams.quiet)
    jvm = spark.sparkContext._gateway.proc
    engine = Engine(store, streams, views, Follows(spark, paths), maintenance, lease, stop, jvm)
    endpoint = process.Endpoint(
        pid=os.getpid(),
        started_at=processes.started_at(os.getpid()) or 0.0,
        host=session.LOOPBACK,
        port=port,
        token=token,
        ui=spark.sparkContext.uiWebUrl,
        engine_token=lease.token,
    )
    process.write_endpoint(paths, endpoint)
    log.info(
        "ready after %.1f s, SQL on %s:%s, fencing token %s", time.monotonic() - began, endpoint.host, port, lease.token
    )
    maintenance.start()
    kept = engine.run()
    maintenance.close()
    if kept:
        process.endpoint_file(paths).unlink(missing_ok=True)
    log.info("stopping")
    streams.stop_all()
    views.close()
    spark.stop()
    if not kept:
        return ExitCode.CONFLICT
    store.release(lease)
    store.close()
    log.info("stopped")
    return ExitCode.OK


def _end_on_signals(stop: threading.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())


def main() -> None:
    parser = argparse.ArgumentParser(prog="penstock-engine", description="The Spark application that runs the streams.")
    parser.add_argument("--project-dir", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    paths = ProjectPaths(arguments.project_dir.resolve())
    try:
        code = run(paths)
    except PenstockError as problem:
        log.error("%s", problem)  # noqa: TRY400 -- the user reads one line
        code = problem.kind.exit_code
    # Commands that were under way may hang on a JVM that is gone; nothing of theirs is needed any more.
    _exit(code)


def _exit(code: ExitCode) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    os._exit(int(code))


if __name__ == "__main__":
    main()
