"""Compaction, vacuum and the log, on real Delta tables; the streams that read them are checkpoints alone."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.errors import AnalysisException
from sqlalchemy.exc import OperationalError

from penstock.compiler.spec import Output, OutputMode, StreamSpec, TableStreamInput
from penstock.engine import maintenance as module
from penstock.engine.maintenance import Done, Held, Maintenance, Upkeep, held_by, properties, unread
from penstock.engine.sink import TableWriter, Target
from penstock.paths import ProjectPaths
from penstock.project.maintenance import MaintenanceSettings, OwnMaintenance
from penstock.store import Desired, Store

HOUR = 3600.0
DAY = 24 * HOUR


def rows_of(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table().column("n").to_pylist())


def small_commits(path: Path, count: int, first: int = 0, **configuration: str) -> None:
    for number in range(first, first + count):
        write_deltalake(
            str(path), pa.table({"n": [number]}), mode="append",
            configuration={**properties(), **configuration} if number == 0 else None,
            commit_properties=CommitProperties(app_transactions=[Transaction("shop.a", number)]),
        )  # fmt: skip


def upkeep(path: Path, *, appends: bool = True, held: Held | None = None, keep: float = DAY, enough: int = 8) -> Upkeep:
    return Upkeep("shop.a", "shop.a", str(path), keep_seconds=keep, appends=appends, held=held, enough=enough)


def aged(path: Path, seconds: float) -> None:
    """Let all that the table has and had be so much older."""
    for file in path.rglob("*"):
        if file.is_file():
            os.utime(file, (time.time() - seconds,) * 2)
    for commit in (path / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in lines:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] -= int(seconds * 1000)
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] -= int(seconds * 1000)
        commit.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
        os.utime(commit, (time.time() - seconds,) * 2)


def test_small_files_are_put_together_and_no_row_changes(tmp_path: Path) -> None:
    small_commits(tmp_path / "t", 12)
    done = upkeep(tmp_path / "t").run()
    assert (done.files_before, done.files_after, done.conflict, done.notes) == (12, 1, False, ())
    assert done.bytes_after < done.bytes_before
    assert rows_of(tmp_path / "t") == list(range(12))
    newest = (tmp_path / "t" / "_delta_log" / f"{12:020d}.json").read_text()
    assert '"dataChange":true' not in newest, "readers pass over it"


def test_few_small_files_are_left_alone(tmp_path: Path) -> None:
    small_commits(tmp_path / "t", 3)
    done = upkeep(tmp_path / "t").run()
    assert (done.files_before, done.files_after) == (3, 3)
    assert DeltaTable(str(tmp_path / "t")).version() == 2, "an idle table gets no commits"


def test_only_what_is_older_than_the_limit_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_commits(path, 10)
    upkeep(path).run()
    aged(path, 2 * DAY)  # the ten files were removed two days ago
    small_commits(path, 9, first=10)
    (path / "part-left-by-a-crash.parquet").write_bytes(b"half")
    os.utime(path / "part-left-by-a-crash.parquet", (time.time() - 2 * DAY,) * 2)
    (path / "part-being-written.parquet").write_bytes(b"half")
    done = upkeep(path).run()
    assert done.files_after == 1
    assert done.deleted_files == 11
    assert done.deleted_bytes > 0
    left = {file.name for file in path.glob("*.parquet")}
    assert len(left) == 1 + 1 + 9 + 1, "the new file, the one before, nine of now, and what is being written"
    assert "part-being-written.parquet" in left
    assert rows_of(path) == list(range(19))


def test_old_files_that_were_removed_just_now_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_commits(path, 10)
    aged(path, 9 * DAY)
    done = upkeep(path).run()
    assert (done.files_after, done.deleted_files) == (1, 0)
    assert len(list(path.glob("*.parquet"))) == 11, "a reader may be in the middle of them"


def test_change_data_goes_with_its_age(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_commits(path, 2, **{"delta.enableChangeDataFeed": "true"})
    for _ in range(2):
        merge = DeltaTable(str(path)).merge(
            pa.table({"n": [1]}), "target.n = source.n", source_alias="source", target_alias="target"
        )
        merge.when_matched_update_all().execute()
    changes = sorted((path / "_change_data").iterdir())
    assert len(changes) == 2
    os.utime(changes[0], (time.time() - 2 * DAY,) * 2)
    upkeep(path).run()
    assert list((path / "_change_data").iterdir()) == [changes[1]]


def test_the_log_does_not_grow_and_keeps_the_identity_of_batches(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_commits(path, 40)
    aged(path, 2 * DAY)
    done = upkeep(path).run()
    assert done.log_before >= 40
    assert done.log_after <= 5
    assert DeltaTable(str(path)).transaction_version("shop.a") == 39
    assert "delta.setTransactionRetentionDuration" not in DeltaTable(str(path)).metadata().configuration
    assert rows_of(path) == list(range(40))


def test_the_log_of_now_stays(tmp_path: Path) -> None:
    small_commits(tmp_path / "t", 40)
    done = upkeep(tmp_path / "t").run()
    assert done.log_after >= done.log_before


def test_what_a_reader_has_still_to_read_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_commits(path, 15)
    upkeep(path).run()
    aged(path, 5 * DAY)
    late = Held("shop.reader", time.time() - 6 * DAY, time.time() - 6 * DAY)
    done = upkeep(path, held=late).run()
    assert done.deleted_files == 0
    assert done.log_after >= done.log_before
    assert done.notes == ("old versions are kept for shop.reader, which has not read what came 144 h ago",)
    idle = Held("shop.reader", time.time() - 6 * DAY, None)
    done = upkeep(path, held=idle).run()
    assert done.deleted_files == 15, "it has nothing to read"
    assert done.log_after >= done.log_before, "it goes on in this log"
    small_commits(path, 20, first=15)
    aged(path, 2 * DAY)
    done = upkeep(path, held=Held("shop.reader", time.time(), time.time())).run()
    assert done.deleted_files == 0, "what is gone is not counted again"
    assert done.log_before - done.log_after > 10, "it reads what is new"


def test_settings_of_the_table_follow_those_of_the_model(tmp_path: Path) -> None:
    small_commits(tmp_path / "t", 2)
    upkeep(tmp_path / "t", keep=7 * DAY).run()
    found = DeltaTable(str(tmp_path / "t")).metadata().configuration
    assert found["delta.logRetentionDuration"] == found["delta.deletedFileRetentionDuration"] == "interval 168 hours"
    version = DeltaTable(str(tmp_path / "t")).version()
    upkeep(tmp_path / "t", keep=7 * DAY).run()
    assert DeltaTable(str(tmp_path / "t")).version() == version


def test_a_compaction_that_meets_a_commit_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    small_commits(path, 10)
    work = upkeep(path, appends=False)
    sizes = work._sizes

    def disturbed() -> list[int]:
        found = sizes()
        DeltaTable(str(path)).delete("n = 3")  # after the table was looked at, and before it is compacted
        return found

    monkeypatch.setattr(work, "_sizes", disturbed)
    assert work._compacted() is False
    monkeypatch.undo()
    assert upkeep(path).run().conflict is False
    assert rows_of(path) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_table_that_replaces_rows_is_compacted_between_two_batches(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_commits(path, 10)
    target = Target(
        stream="shop.a", table="shop.a", path=str(path), mode="upsert", keys=("n",), checkpoint=tmp_path / "c",
        checkpoint_id="c", small_batch_rows=10, stateful=False,
    )  # fmt: skip
    writer = TableWriter(target, 1)
    begun = threading.Event()

    def batch() -> None:
        with writer.between_batches():
            begun.set()
            time.sleep(0.2)
            ended.append(DeltaTable(str(path)).version())

    ended: list[int] = []
    thread = threading.Thread(target=batch)
    thread.start()
    assert begun.wait(10)
    done = Upkeep("shop.a", "shop.a", str(path), appends=False, quiet=writer.between_batches).run()
    thread.join()
    assert ended == [9], "nothing was committed while the batch was under way"
    assert done.files_after == 1


def test_a_writer_goes_on_when_the_commits_it_has_not_seen_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_commits(path, 3)
    target = Target(
        stream="shop.a", table="shop.a", path=str(path), mode="append", keys=(), checkpoint=tmp_path / "c",
        checkpoint_id="c", small_batch_rows=10, stateful=False,
    )  # fmt: skip
    writer = TableWriter(target, 1)
    writer.fence()
    small_commits(path, 40, first=3)
    aged(path, 2 * DAY)
    upkeep(path).run()
    assert writer.newest_batch() == -1
    writer.fence()


# -- readers -----------------------------------------------------------------------------------------------------------
def test_what_is_unread_is_known_from_the_offset(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_commits(path, 10)
    upkeep(path).run()  # commit 10: a compaction
    at = {"isStartingVersion": False, "index": -1}
    assert unread("r", path, None) is None
    assert unread("r", path, {"reservoirVersion": 11, **at}) is None
    passed = unread("r", path, {"reservoirVersion": 10, **at})
    assert passed is not None
    assert passed.rows_since is None, "a compaction is nothing to read"
    behind = unread("r", path, {"reservoirVersion": 4, **at})
    assert behind is not None
    assert behind.rows_since == behind.since
    whole = unread("r", path, {"reservoirVersion": 9, "index": 0, "isStartingVersion": False})
    assert whole is not None
    assert whole.rows_since is None


def test_files_stay_for_a_reader_that_is_in_the_middle_of_the_table_it_found(tmp_path: Path) -> None:
    path, name = tmp_path / "t", "shop.reader"
    small_commits(path, 12)
    files = set(DeltaTable(str(path)).file_uris())
    aged(path, 2 * DAY)
    upkeep(path).run()
    aged(path, 2 * DAY)
    place = {"reservoirVersion": 11, "index": 2, "isStartingVersion": True}
    done = upkeep(path, held=unread(name, path, place)).run()
    assert done.deleted_files == 0
    assert all(Path(file).exists() for file in files)
    assert any(name in note for note in done.notes), done.notes
    assert upkeep(path).run().deleted_files == 12, "nobody reads them any more"


def reader(tmp_path: Path, name: str, *places: tuple[Path, int]) -> tuple[str, tuple[StreamSpec, Path]]:
    """A stream that reads shop.a, and has read tables up to these versions."""
    folder = tmp_path / name
    (folder / "offsets").mkdir(parents=True)
    (folder / "commits").mkdir()
    offsets = [
        {"sourceVersion": 1, "reservoirId": str(DeltaTable(str(path)).metadata().id), "reservoirVersion": version,
         "index": -1, "isStartingVersion": False}
        for path, version in places
    ]  # fmt: skip
    (folder / "offsets" / "0").write_text("\n".join(["v1", "{}", *map(json.dumps, offsets)]))
    (folder / "commits" / "0").write_text("v1\n{}")
    spec = StreamSpec(
        name=name, unique_id=name, path="models/r.sql", sql="select * from a", stateful=False,
        inputs=(TableStreamInput(view="a", relation="shop.a"),), output=Output(relation=name, mode=OutputMode.APPEND),
    )  # fmt: skip
    return name, (spec, folder)


def test_the_reader_that_is_furthest_behind_holds_the_table(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_commits(path, 5)
    other = tmp_path / "other"
    small_commits(other, 5)
    readers = dict(
        [
            reader(tmp_path, "shop.far", (path, 2)),
            reader(tmp_path, "shop.near", (path, 4)),
            reader(tmp_path, "shop.at", (path, 5)),
            reader(tmp_path, "shop.of_two", (other, 0), (path, 5)),  # in the order of Spark
        ]
    )
    found = held_by("shop.a", path, readers)
    assert found is not None
    assert found.reader == "shop.far"
    assert held_by("shop.b", path, readers) is None


# -- in time -----------------------------------------------------------------------------------------------------------
def test_each_table_is_maintained_in_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    store = Store.open(tmp_path / "store.db")
    often = OwnMaintenance(every="1 minute")  # type: ignore[arg-type]
    for name, own in (("shop.a", None), ("shop.b", often), ("shop.none", None)):
        _, (spec, _) = reader(tmp_path, name)
        spec = spec.model_copy(update={"maintenance": own})
        store.deploy(name, spec.to_json(), spec.hash, verdict="NEW", new_checkpoint=False)
    small_commits(tmp_path / "a", 1)
    small_commits(tmp_path / "b", 1)

    @contextmanager
    def quiet(_stream: str) -> Iterator[None]:
        yield

    def locate(table: str) -> str | None:
        return None if table == "shop.none" else str(tmp_path / table.removeprefix("shop."))

    work = Maintenance(store, ProjectPaths(tmp_path), MaintenanceSettings(), locate, quiet)

    def looked(after: float) -> list[str]:
        now[0] += after
        return [each.stream for each in work.look()]

    assert looked(0) == []
    assert looked(61) == ["shop.b"]
    assert looked(30) == []
    assert looked(31) == ["shop.b"]
    assert looked(200) == ["shop.a", "shop.b"], "the first time comes soon after the start"
    _, (late, _) = reader(tmp_path, "shop.late")
    store.deploy("shop.late", late.to_json(), late.hash, verdict="NEW", new_checkpoint=False)
    small_commits(tmp_path / "late", 1)
    assert looked(10) == [], "a table that was made just now has nothing to be maintained"
    assert looked(301) == ["shop.b", "shop.late"]
    assert looked(3189) == ["shop.b"]
    assert looked(101) == ["shop.a", "shop.b"]

    met = Done("shop.a", "shop.a", conflict=True)
    monkeypatch.setattr(work, "maintain", lambda want: met if want.stream == "shop.a" else None)
    assert looked(3601) == ["shop.a"]
    assert looked(61) == ["shop.a"], "it comes again soon"

    def broken(_want: object) -> None:
        raise CommitFailedError("the disk is away")

    monkeypatch.setattr(work, "maintain", broken)
    assert looked(3601) == [], "told in the log, and tried again next time"


OTHER_VERSION = '{"format_version": 0, "reads": ["shop.a"]}'


def maintenance_of(tmp_path: Path, store: Store, locate: Callable[[str], str | None]) -> Maintenance:
    often = MaintenanceSettings(every="1 minute")  # type: ignore[arg-type]
    return Maintenance(store, ProjectPaths(tmp_path), often, locate, lambda _stream: nullcontext())


def deployed(tmp_path: Path, *names: str) -> Store:
    store = Store.open(tmp_path / "store.db")
    for name in names:
        _, (spec, _) = reader(tmp_path, name)
        store.deploy(name, spec.to_json(), spec.hash, verdict="NEW", new_checkpoint=False)
    return store


def test_a_stream_of_another_version_and_an_error_of_spark_hold_up_no_other_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    store = deployed(tmp_path, "shop.b", "shop.c")
    store.deploy("shop.a0", OTHER_VERSION, "h", verdict="NEW", new_checkpoint=False)
    small_commits(tmp_path / "c", 1)

    def locate(table: str) -> str | None:
        if table == "shop.b":
            raise AnalysisException("the catalog does not answer")
        return str(tmp_path / table.removeprefix("shop."))

    work = maintenance_of(tmp_path, store, locate)
    assert work.look() == []
    now[0] += 61
    assert [each.stream for each in work.look()] == ["shop.c"]
    told = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert len(told) == 2
    assert told[0].startswith("shop.a0: its table could not be maintained: PEN-3005")
    assert "another version of Penstock" in told[0]
    assert told[1] == "shop.b: its table could not be maintained"
    assert "the catalog does not answer" in caplog.text
    assert work.look() == [], "all of them come again in their time, not at once"


def test_nothing_is_deleted_that_a_stream_of_another_version_may_read(tmp_path: Path) -> None:
    store = deployed(tmp_path, "shop.a", "shop.b")
    store.deploy("shop.old", OTHER_VERSION, "h", verdict="NEW", new_checkpoint=False)
    work = maintenance_of(tmp_path, store, lambda table: str(tmp_path / table.removeprefix("shop.")))
    for name in ("a", "b"):
        small_commits(tmp_path / name, 12)
        upkeep(tmp_path / name).run()
        small_commits(tmp_path / name, 20, first=12)
        aged(tmp_path / name, 2 * DAY)
    kept = work.maintain(store.desired("shop.a"))
    assert kept is not None
    assert kept.deleted_files == 0
    assert kept.log_after >= kept.log_before
    assert kept.notes == (
        "nothing is deleted: shop.old, which may read it, was deployed by another version of Penstock",
    )
    other = work.maintain(store.desired("shop.b"))
    assert other is not None
    assert (other.deleted_files, other.notes) == (12, ()), "its name is nowhere in that spec"


def test_maintenance_goes_on_whatever_happens_to_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_LOOK", 0.001)
    store = deployed(tmp_path, "shop.a")
    looks: list[int] = []
    again = threading.Event()

    def broken() -> list[Desired]:
        looks.append(1)
        if len(looks) == 5:
            again.set()
        raise OperationalError("select", {}, Exception("the store is away"))

    monkeypatch.setattr(store, "all_desired", broken)
    work = maintenance_of(tmp_path, store, lambda _table: None)
    work.start()
    assert again.wait(10), "an error ended the thread"
    work.close()
    told = [record.getMessage() for record in caplog.records if "looked up" in record.getMessage()]
    assert told == ["the deployed streams could not be looked up; no table is maintained until they can"]


def test_a_model_s_word_goes_before_the_profile_s() -> None:
    profile = MaintenanceSettings(every="2 hours", keep="7 days")  # type: ignore[arg-type]
    own = OwnMaintenance(keep="3 days")  # type: ignore[arg-type]
    assert own.within(profile) == MaintenanceSettings(every=7_200_000, keep=3 * 86_400_000)
