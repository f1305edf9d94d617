"""Queries that people follow: streams without a table, whose rows go to a terminal.

Rules
- The one who follows opens a socket that only its own user can reach, and names it; the rows are sent there.
- A frame is a sign, a length and that many bytes: R (it runs; what comes from now on is seen), A (rows, as Arrow's
  stream), E (an error of the catalogue, as JSON: the end).
- The other end of the socket closes, for whatever reason: the query is stopped and its files are deleted. Nothing else
  is kept of it, in the store or anywhere.
- Whoever reads slowly slows the query down, and no other.
"""

from __future__ import annotations

import json
import logging
import select
import shutil
import socket
import struct
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.compiler.spec import StreamSpec
from penstock.engine import failures, jobs, pools, runtime
from penstock.engine.messages import note_unknown
from penstock.engine.streams import check_streaming
from penstock.errors import PenstockError
from penstock.paths import ProjectPaths

log = logging.getLogger(__name__)

HEADER = struct.Struct(">cQ")
READY, ROWS, ERROR = b"R", b"A", b"E"
_LOOK = 0.25


class Follows:
    """The followed queries of one engine."""

    def __init__(self, spark: SparkSession, paths: ProjectPaths) -> None:
        self._spark = spark
        self._scratch = paths.engine / "scratch"

    def start(self, spec: StreamSpec, address: str) -> None:
        """Start the stream and send its rows to the socket."""
        folder = self._scratch / f"follow-{uuid.uuid4().hex[:12]}"
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            channel.connect(address)
            job = jobs.load(spec, folder / "job.py")
            session = runtime.session_for(self._spark, job.STREAM)
            query = _query(session, job.STREAM, folder / "checkpoint", channel)
            run = _Run(session, job.STREAM, spec, channel, folder)
        except (PySparkException, Py4JJavaError, PenstockError) as problem:
            _end(channel, folder)
            raise failures.of_model(problem, spec) from problem
        except BaseException:
            _end(channel, folder)
            raise
        threading.Thread(target=_watch, args=(run, query), name="follow", daemon=True).start()


@dataclass(frozen=True)
class _Run:
    """A followed query at work."""

    session: SparkSession
    stream: runtime.Stream
    spec: StreamSpec
    channel: socket.socket
    folder: Path


def _query(session: SparkSession, stream: runtime.Stream, checkpoint: Path, channel: socket.socket) -> StreamingQuery:
    pools.enter(session.sparkContext, pools.PEOPLE)  # somebody waits for it
    session.sparkContext.setJobDescription("followed query")
    rows = stream.build(session)
    check_streaming(rows, stream.output_mode)

    def send(batch: DataFrame, _number: int) -> None:
        found = batch.toArrow()
        if found.num_rows:
            _send(channel, ROWS, _arrow(found))

    return (
        rows.writeStream.outputMode(stream.output_mode)
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(send)
        .trigger(processingTime=f"{stream.time_window_ms} milliseconds")
        .start()
    )


def _watch(run: _Run, query: StreamingQuery) -> None:
    """Until the other end closes or the query fails for good."""
    channel = run.channel
    try:
        ready = False
        while True:
            if not query.isActive:
                problem = str(query.exception() or "the query ended without an error")
                if not note_unknown(run.session, problem):
                    _send(channel, ERROR, json.dumps(failures.of_stream(problem, run.spec).as_dict()).encode())
                    return
                # A message of a schema that is new: with it, the batch is tried again.
                query = _query(run.session, run.stream, run.folder / "checkpoint", channel)
            if not ready and query.lastProgress is not None:
                ready = _send(channel, READY, b"")
            if select.select([channel], [], [], _LOOK)[0] and not _open(channel):
                query.stop()
                return
    except (Py4JError, PySparkException, PenstockError):
        log.exception("a followed query could not be watched")
    finally:
        _end(channel, run.folder)


def _open(channel: socket.socket) -> bool:
    """Whether the other end is there still; it never says anything."""
    try:
        return bool(channel.recv(1))
    except OSError:
        return False


def _send(channel: socket.socket, sign: bytes, body: bytes) -> bool:
    try:
        channel.sendall(HEADER.pack(sign, len(body)) + body)
    except OSError:
        time.sleep(_LOOK)  # nobody listens any more; `_watch` sees it and stops the query
    return True


def _arrow(rows: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(out.getvalue())


def _end(channel: socket.socket, folder: Path) -> None:
    channel.close()
    shutil.rmtree(folder, ignore_errors=True)
