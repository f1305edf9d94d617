"""Keeping tables small: files are put together, old versions and old commits go.

Rules
- Small files are put together in a commit that changes no row: streams and change feeds that read the table pass over
  it. Beside a stream that appends this goes on while it writes, for appends conflict with nothing, and rows keep their
  order (`engine.compaction`). A table whose rows are replaced needs none: delta-rs compacts it between two batches of
  its stream. A compaction that meets a commit of somebody else gives up, and comes again later. Nothing in here can
  make a stream fail.
- What is no longer part of the table is deleted after `keep`, and so are change-data files and what a crash left.
  Commits are deleted from the log after `keep`, too, behind a checkpoint of the log, which holds the identities of the
  streams' batches for ever.
- Nothing is deleted that a deployed stream has still to read, stopped or not: then the table keeps it for as long as
  that takes. What a stream of another Penstock version reads is not known: tables that its spec names keep all.
- One table at a time; an hour after the last time, or as its settings say. The first time comes minutes after the
  engine has started, or the stream is deployed. What goes wrong with one table is told in the log, and holds up no
  other.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from penstock.checkpoint.offsets import Offset, committed_in_tables
from penstock.checkpoint.table_ids import table_id
from penstock.compiler.spec import StreamSpec, TableStreamInput
from penstock.engine import compaction
from penstock.errors import PenstockError
from penstock.errors.catalogue import CHANGE_NEEDS_REBUILD
from penstock.paths import ProjectPaths
from penstock.project.maintenance import KEEP_MS, MaintenanceSettings, OwnMaintenance
from penstock.store import Desired, RebuildPhase, Store

log = logging.getLogger(__name__)

SMALL = 64 << 20  # bytes: files below are put together up to here
ENOUGH = 8  # small files before it is worth a commit
_FIRST = 300.0  # seconds after a stream was first seen, at the latest
_AGAIN = 60.0  # seconds after a compaction that gave up
_LOOK = 10.0
_COMMITS = 20  # since the log's last checkpoint, before a new one is written here
_HOUR = 3600.0
_REPLACING = (RebuildPhase.STANDING, RebuildPhase.TAKING_OVER)
_OTHER_VERSION = "was deployed by another version of Penstock"


@dataclass(frozen=True)
class Done:
    """What was done to one table."""

    stream: str
    table: str
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    deleted_files: int = 0
    deleted_bytes: int = 0
    log_before: int = 0  # files of the commit log
    log_after: int = 0
    conflict: bool = False  # a compaction gave up
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"notes": list(self.notes)}


@dataclass(frozen=True)
class Held:
    """What a stream that reads a table has not read yet: its next commit, and the first of them with rows.

    Of one that still reads the table as it was when it began, both are that version.
    """

    reader: str
    since: float  # when the next commit was made
    rows_since: float | None  # None: nothing but commits without rows


class Upkeep:
    """One table: `run` does all that is to be done."""

    def __init__(
        self,
        stream: str,
        table: str,
        path: str,
        *,
        keep_seconds: float = KEEP_MS / 1000,
        appends: bool = True,
        held: Held | None = None,
        unknown: Sequence[str] = (),
        quiet: Callable[[], AbstractContextManager[object]] = nullcontext,
        enough: int = ENOUGH,
    ) -> None:
        self._stream = stream
        self._name = table
        self._path = Path(path)
        self._keep = keep_seconds
        self._appends = appends
        self._held = held
        self._unknown = unknown  # streams that may have to read anything of it
        self._quiet = quiet  # between two batches of the stream
        self._enough = enough
        self._table = DeltaTable(path)

    def run(self, now: float | None = None) -> Done:
        now = time.time() if now is None else now
        late = self._held if self._held is not None and now - self._held.since > self._keep else None
        rows_since = late.rows_since if late is not None else None
        waiting = rows_since is not None and now - rows_since > self._keep
        notes = [_told(late.reader, rows_since, now)] if late and rows_since is not None and waiting else []
        files, size = self._files()
        log_before = self._log()
        conflict = False
        try:
            conflict = not self._compacted()
        except compaction.Unfit as why:
            notes.append(f"its small files are left as they are: {why}")
        if conflict:
            notes.append("the compaction met another commit and comes again later")
        self._settle()
        deleted, deleted_bytes = 0, 0
        if self._unknown:
            notes.append(f"nothing is deleted: {', '.join(self._unknown)}, which may read it, {_OTHER_VERSION}")
        else:
            deleted, deleted_bytes = self._vacuumed(now, rows_since if waiting else None)
            if late is None:
                self._trim_log()
        after, size_after = self._files()
        return Done(
            self._stream, self._name, files, after, size, size_after, deleted, deleted_bytes, log_before, self._log(),
            conflict, tuple(notes),
        )  # fmt: skip

    # -- files ---------------------------------------------------------------------------------------------------------
    def _sizes(self) -> list[int]:
        self._table = DeltaTable(str(self._path))
        actions = pa.table(self._table.get_add_actions(flatten=True))
        return [int(size) for size in actions.column("size_bytes").to_pylist()]

    def _files(self) -> tuple[int, int]:
        sizes = self._sizes()
        return len(sizes), sum(sizes)

    def _compacted(self) -> bool:
        """Put small files together if there are enough of them; False when somebody else's commit was in the way."""
        with nullcontext() if self._appends else self._quiet():
            if sum(size < SMALL for size in self._sizes()) < self._enough:
                return True
            try:
                if self._appends:
                    compaction.compact(self._path, self._table, SMALL)
                else:
                    self._table.optimize.compact(target_size=SMALL, max_concurrent_tasks=1)
            except (CommitFailedError, compaction.Met):
                return False
            return True

    def _vacuumed(self, now: float, needed_since: float | None) -> tuple[int, int]:
        """Delete what is no longer part of the table; how many files, and bytes."""
        age = self._keep if needed_since is None else now - needed_since + _HOUR
        # With a reader that is behind only what the log names as removed is looked at: of other files nobody knows
        # since when they are not needed.
        hours, full = math.ceil(age / _HOUR), needed_since is None
        listed = self._table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=full)
        gone = [self._path / name for name in listed if (self._path / name).exists()]
        if not gone:
            return 0, 0  # the log names files for a while after they were deleted
        size = sum(file.stat().st_size for file in gone)
        self._table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=full)
        return len(gone), size

    # -- the log -------------------------------------------------------------------------------------------------------
    def _settle(self) -> None:
        """Let the table's own settings say the same: what is done here must not be done by others, and earlier."""
        self._table = DeltaTable(str(self._path))
        found = self._table.metadata().configuration
        wanted = properties(self._keep)
        if {name: found.get(name) for name in wanted} == wanted:
            return
        with self._quiet():
            self._table = DeltaTable(str(self._path))
            self._table.alter.set_table_properties(wanted)

    def _trim_log(self) -> None:
        self._table = DeltaTable(str(self._path))
        if self._table.version() - _checkpointed(self._path) >= _COMMITS:
            self._table.create_checkpoint()
        self._table.cleanup_metadata()

    def _log(self) -> int:
        return sum(1 for _ in (self._path / "_delta_log").iterdir())


def properties(keep_seconds: float = KEEP_MS / 1000) -> dict[str, str]:
    """Of a table that is maintained: for how long removed files and commits are kept, and that nobody else trims it."""
    interval = f"interval {math.ceil(keep_seconds / _HOUR)} hours"
    return {
        "delta.logRetentionDuration": interval,
        "delta.deletedFileRetentionDuration": interval,
        "delta.enableExpiredLogCleanup": "false",
    }


def _checkpointed(path: Path) -> int:
    try:
        return int(json.loads((path / "_delta_log" / "_last_checkpoint").read_text(encoding="utf-8"))["version"])
    except (FileNotFoundError, ValueError, KeyError):
        return -1


def _told(reader: str, since: float, now: float) -> str:
    return f"old versions are kept for {reader}, which has not read what came {(now - since) / _HOUR:.0f} h ago"


# -- who has still to read what ----------------------------------------------------------------------------------------
def unread(reader: str, path: Path, offset: Offset | None) -> Held | None:
    """What a stream at this offset has not read of a table; None when it has read all there is.

    A stream without an offset begins with the table as it is then, and needs nothing older.
    """
    if offset is None or "reservoirVersion" not in offset:
        return None
    version, read = int(offset["reservoirVersion"]), max(int(offset.get("index", -1)) + 1, 0)
    first = commit = _commit(path, version)
    if first is not None and offset.get("isStartingVersion"):
        # In the middle of the table as it was at this version: any file of then may be one that it has still to read.
        return Held(reader, first[0], first[0])
    while commit is not None and commit[1] <= read:
        version, read = version + 1, 0
        commit = _commit(path, version)
    return None if first is None else Held(reader, first[0], commit[0] if commit is not None else None)


def _commit(path: Path, version: int) -> tuple[float, int] | None:
    """When a commit was made, and how many of its files have new or changed rows; None when it is not there."""
    file = path / "_delta_log" / f"{version:020d}.json"
    try:
        actions = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        times = [
            each["commitInfo"]["timestamp"] / 1000 for each in actions if "timestamp" in each.get("commitInfo", {})
        ]
        at = times[0] if times else file.stat().st_mtime
    except FileNotFoundError:
        return None
    return at, sum("cdc" in each or each.get("add", {}).get("dataChange", False) for each in actions)


def held_by(relation: str, path: Path, readers: Mapping[str, tuple[StreamSpec, Path]]) -> Held | None:
    """The deployed stream (name -> spec and checkpoint) that is furthest behind in a table; None when none is."""
    found, own = [], table_id(path) or ""
    for name, (spec, checkpoint) in readers.items():
        reads = any(isinstance(each, TableStreamInput) and each.relation == relation for each in spec.inputs)
        if reads and not spec.is_full:
            found.append(unread(name, path, committed_in_tables(checkpoint).get(own)))
    return min((each for each in found if each is not None), key=lambda each: each.since, default=None)


# -- all tables --------------------------------------------------------------------------------------------------------
class Maintenance:
    """Maintains the tables of all deployed streams, each in its time."""

    def __init__(
        self,
        store: Store,
        paths: ProjectPaths,
        settings: MaintenanceSettings,
        locate: Callable[[str], str | None],
        quiet: Callable[[str], AbstractContextManager[object]],
    ) -> None:
        self._store = store
        self._paths = paths
        self._settings = settings
        self._locate = locate  # the path of a table, if there is one
        self._quiet = quiet
        self._next: dict[str, float] = {}
        self._trouble = ""  # with all streams, as it was last logged
        self._one = threading.Lock()
        self._ending = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._loop, name="maintenance", daemon=True).start()

    def close(self) -> None:
        self._ending.set()

    def _loop(self) -> None:
        while not self._ending.wait(_LOOK):
            try:
                self.look()
            except Exception as problem:
                if str(problem) != self._trouble:
                    log.exception("the deployed streams could not be looked up; no table is maintained until they can")
                self._trouble = str(problem)
            else:
                self._trouble = ""

    def look(self) -> list[Done]:
        """Maintain the tables whose time has come."""
        done = []
        replaced = {each.stream for each in self._store.rebuilds().values() if each.phase in _REPLACING}
        for want in self._store.all_desired():
            if want.stream in replaced:
                continue  # a commit would be in the way of the one that replaces its rows
            every = self._of(StreamSpec.if_known(want.spec_json)).every / 1000
            due = self._next.setdefault(want.stream, time.monotonic() + min(_FIRST, every))
            if time.monotonic() < due or self._ending.is_set():
                continue
            self._next[want.stream] = time.monotonic() + every
            found = self._tried(want)
            if found is not None:
                done.append(found)
                if found.conflict:
                    self._next[want.stream] = time.monotonic() + min(_AGAIN, every)
        return done

    def _tried(self, want: Desired) -> Done | None:
        """Maintain one table; what goes wrong is told in the log, and comes again in its time."""
        try:
            return self.maintain(want)
        except (DeltaError, PenstockError, OSError) as problem:
            log.warning("%s: its table could not be maintained: %s", want.stream, problem)
        except Exception:  # of Spark, Arrow, or a bug: the other tables are maintained all the same
            log.exception("%s: its table could not be maintained", want.stream)
        return None

    def maintain(self, want: Desired, *, enough: int = ENOUGH) -> Done | None:
        """Maintain one table now; None when there is no table."""
        spec = StreamSpec.if_known(want.spec_json)
        if spec is None:
            raise CHANGE_NEEDS_REBUILD.error(f"'{want.stream}' {_OTHER_VERSION}: which table it writes is not known.")
        path = self._locate(spec.output.relation)
        if path is None:
            return None
        with self._one:
            readers, unknown = self._readers(spec.output.relation)
            upkeep = Upkeep(
                want.stream,
                spec.output.relation,
                path,
                keep_seconds=self._of(spec).keep / 1000,
                appends=spec.output.mode.value == "append",
                held=held_by(spec.output.relation, Path(path), readers),
                unknown=unknown,
                quiet=lambda: self._quiet(want.stream),
                enough=enough,
            )
            done = upkeep.run()
        log.info(
            "%s: maintained: files %s -> %s, %s old files deleted, log %s -> %s%s", want.stream, done.files_before,
            done.files_after, done.deleted_files, done.log_before, done.log_after,
            "".join(f"; {note}" for note in done.notes),
        )  # fmt: skip
        return done

    def _of(self, spec: StreamSpec | None) -> MaintenanceSettings:
        own = spec.maintenance if spec is not None else None
        return (own or OwnMaintenance()).within(self._settings)

    def _readers(self, relation: str) -> tuple[dict[str, tuple[StreamSpec, Path]], list[str]]:
        """The deployed streams with their checkpoints, and those that may read this table in a way nobody knows."""
        known, unknown = {}, []
        for want in self._store.all_desired(hidden=True):  # a rebuild reads, too
            spec = StreamSpec.if_known(want.spec_json)
            if spec is not None:
                known[want.stream] = (spec, self._paths.checkpoint(want.stream, want.checkpoint_id))
            elif relation in want.spec_json:
                unknown.append(want.stream)
        return known, unknown
