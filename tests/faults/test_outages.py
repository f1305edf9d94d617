"""What a stream depends on fails: the broker, the disk, its own data. Nothing is lost, and the others go on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock import processes
from penstock.compiler.spec import TableInput
from penstock.control.lag import table_path
from penstock.control.streams import drop_stream, restart_stream
from penstock.dev import broker as broker_service
from penstock.dev.broker import Broker
from penstock.paths import ProjectPaths
from penstock.store import StreamState

if TYPE_CHECKING:
    from tests.conftest import MakeSpec, MakeTopic, Platform, Produce
else:
    MakeSpec = MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)


def count(platform: Platform, table: str) -> int:
    return int(platform.sql(f"select count(*) from {table}")[0][0])


# -- the broker -------------------------------------------------------------------------------------------------------
def test_streams_outlive_the_broker(
    platform: Platform, broker: Broker, broker_paths: ProjectPaths, make_spec: MakeSpec, topic: MakeTopic,
    produce: Produce,
) -> None:  # fmt: skip
    name = topic(2)
    plain = make_spec("plain", name, "select part, pos from input")
    twin = make_spec("twin", name, "select part, pos from input")
    counts = make_spec("counts", name, "select k, count(*) as n from input group by k", keys=("k",), stateful=True)
    for spec in (plain, twin, counts):
        platform.deploy(spec)
    produce(name, [{"k": f"k{n % 5}", "v": n} for n in range(200)])
    platform.until(lambda: count(platform, plain.name) == 200, "200 rows", 90)
    for spec in (plain, twin):  # the engine's own reader has to get over it, and Spark's
        told = f"{spec.name} reads topic '{name}' with others"
        platform.until(lambda t=told: t in (platform.paths.logs / "engine.log").read_text(errors="replace"), told, 90)

    running = broker_service.status(broker_paths)
    assert running is not None
    try:
        os.kill(running.pid, signal.SIGKILL)
        platform.until(lambda: not processes.alive(running.pid, running.started_at), "the broker's end")
        platform.until(lambda: platform.store.actual(plain.name).lag_rows is None, "a lag that nobody knows", 60)
    finally:
        again = broker_service.start(broker_paths, timeout=120)
    assert again.bootstrap == broker.bootstrap
    produce(name, [{"k": f"k{n % 5}", "v": n} for n in range(200, 300)])

    platform.until(
        lambda: count(platform, plain.name) == 300,
        "all rows, by itself",
        180,
        lambda: platform.store.actual(plain.name),
    )
    platform.until(lambda: count(platform, twin.name) == 300, "all rows of the other one", 90)
    for spec in (plain, twin):
        assert platform.sql(f"select count(distinct part, pos) from {spec.name}") == [(300,)]
    want = [(f"k{n}", 60) for n in range(5)]
    platform.until(lambda: sorted(platform.sql(f"select * from {counts.name}")) == want, "the right counts", 90)
    for spec in (plain, twin, counts):
        platform.state(spec.name, StreamState.RUNNING)


# -- the stream's own data --------------------------------------------------------------------------------------------
def test_a_poisoned_stream_is_quarantined_alone_and_a_restart_lifts_it(
    platform: Platform, schema: str, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    # Given: a stream that fails on rows that a table calls bad, and one that does not.
    name = topic(1)
    platform.sql(f"create schema {schema}")
    platform.sql(f"create table {schema}.bad (k string) using delta")
    platform.sql(f"insert into {schema}.bad values ('poison')")
    sql = (
        "select pos, i.k, case when b.k is not null then raise_error(concat('boom on ', i.k)) else v end as v "
        f"from input i left join {schema}.bad b on i.k = b.k"
    )
    base = make_spec("poisoned", name, sql)
    poisoned = base.model_copy(update={"inputs": (*base.inputs, TableInput(relation=f"{schema}.bad"))})
    healthy = make_spec("healthy", name, "select pos, k from input")
    for spec in (poisoned, healthy):
        platform.deploy(spec)
    produce(name, [{"k": "fine", "v": n} for n in range(10)])
    platform.until(lambda: count(platform, poisoned.name) == 10, "10 rows before the poison", 90)

    # When: such a row comes.
    produce(name, [{"k": "poison", "v": 10}])
    found = platform.state(poisoned.name, StreamState.QUARANTINED, timeout=180)

    # Then: the error is in the user's words, and the other stream goes on.
    assert found.error_code == "PEN-4003"
    assert "models/poisoned.sql" in found.error
    assert "boom on poison" in found.error
    foreign = [word for word in ("org.apache", "Traceback", "\n", "Exception", "Py4J") if word in found.error]
    assert foreign == [], found.error
    assert found.failures == 5
    produce(name, [{"k": "fine", "v": 11}])
    platform.until(lambda: count(platform, healthy.name) == 12, "the other stream's rows", 60)
    assert platform.store.actual(healthy.name).restarts == 0
    assert count(platform, poisoned.name) == 10

    # And: mended and restarted it goes on where it was.
    platform.sql(f"delete from {schema}.bad")
    restart_stream(platform.store, poisoned.name)
    platform.until(lambda: count(platform, poisoned.name) == 12, "the rows that waited", 90)
    assert platform.sql(f"select count(distinct pos) from {poisoned.name}") == [(12,)]


# -- the disk ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def small_disk(platform: Platform, schema: str) -> Iterator[Path]:
    """The directory of the schema's tables as a file system of 2 MB."""
    where = table_path(platform.paths, f"{schema}.any").parent
    where.mkdir(parents=True)
    mounted = mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(where))
    if mounted.returncode:
        why = f"no file system can be mounted here: {mounted.stderr.strip()}"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    try:
        yield where
    finally:
        for want in platform.store.all_desired():
            if want.stream.startswith(f"{schema}."):
                drop_stream(platform.store, want.stream)
        subprocess.run(["umount", "--lazy", str(where)], check=True, timeout=60)


def mount(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mount", *words], capture_output=True, text=True, timeout=60, check=False)


def test_a_full_disk_damages_no_table_and_the_stream_goes_on_when_there_is_room(
    platform: Platform, small_disk: Path, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(1)
    chance = random.Random(5)
    specs = {
        "direct": make_spec("small", name, "select pos, k from input"),
        "spark": make_spec("large", name, "select pos, k from input", small_batch_rows=0),
    }

    def send(rows: int) -> None:  # 10 kB each that do not compress
        produce(name, [{"k": chance.randbytes(5_000).hex(), "v": 1} for _ in range(rows)])

    def failed(table: str) -> bool:
        found = platform.store.actual(table)
        return found.error_code == "PEN-1006" and found.state is StreamState.FAILED

    for spec in specs.values():
        platform.deploy(spec)
        platform.state(spec.name, StreamState.RUNNING)
    send(20)
    for spec in specs.values():
        platform.until(lambda spec=spec: count(platform, spec.name) == 20, f"20 rows in {spec.name}", 90)
    send(600)  # 3 MB a table even when compressed
    for spec in specs.values():
        platform.until(
            lambda spec=spec: failed(spec.name), f"PEN-1006 of {spec.name}", 120,
            lambda spec=spec: platform.store.actual(spec.name),
        )  # fmt: skip
        whole = DeltaTable(str(small_disk / spec.name.split(".")[1])).to_pyarrow_table(columns=["pos"])
        positions = whole.column("pos").to_pylist()
        assert sorted(positions) == list(range(len(positions)))
        assert 20 <= len(positions) < 620

    assert mount("-o", "remount,size=64m", str(small_disk)).returncode == 0
    for writer, spec in specs.items():
        platform.until(
            lambda spec=spec: count(platform, spec.name) == 620, f"all rows in {spec.name}", 180,
            lambda spec=spec: platform.store.actual(spec.name),
        )  # fmt: skip
        assert platform.sql(f"select count(distinct pos) from {spec.name}") == [(620,)]
        assert platform.state(spec.name, StreamState.RUNNING).error_code == "PEN-1006", (
            "the last error stays to be read"
        )
        assert writer in {batch.writer for batch in platform.store.progress(spec.name)}
