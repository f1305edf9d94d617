"""Bad records kept in a table, tested by dbt, and replayed after a fix: broker and Spark are real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import warm
from deltalake import DeltaTable
from published_messages import read_topic
from source_files import column, compiled, table

from penstock.control.lag import table_path
from penstock.control.quarantine import replay
from penstock.control.streams import drop_stream
from penstock.errors import PenstockError
from penstock.errors.catalogue import NO_QUARANTINE, QUERY_FAILED, REPLAY_OUTDATED, REPLAY_STATEFUL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Platform = Any

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def source(platform: Platform, schema: str) -> Iterator[str]:
    """A source that no other test has; its quarantine is dropped in the end."""
    name = f"{schema}_raw.clicks"
    yield name
    platform.endpoint()
    if platform.store.find_desired(f"{name}__quarantine") is not None:
        drop_stream(platform.store, f"{name}__quarantine")


class Shop:
    """Streams over one source, whose columns change."""

    def __init__(self, platform: Platform, source: str, topic: str, folder: Path) -> None:
        self.platform, self.source, self.topic, self.folder = platform, source, topic, folder
        self.kept = f"{source}__quarantine"

    def deploy(self, stream: str, sql: str, *columns: str, **config: Any) -> str:
        schema = self.source.partition(".")[0]
        text = table(f"{{topic: {self.topic}, on_bad_record: quarantine}}", *columns)
        spec = compiled(
            text.replace("name: shop", f"name: {schema}"), self.folder, name=stream,
            sql=sql.format(source=self.source), **config,
        )  # fmt: skip
        return str(self.platform.deploy(spec).verdict)

    def rows(self, stream: str, count: int, what: str = "item") -> list[Any]:
        def look() -> list[Any]:
            found = [row[0] for row in self.platform.sql(f"select {what} from {stream}")]
            return found if len(found) >= count else []

        found = self.platform.until(look, f"{count} rows of {stream}", 120, lambda: self.platform.store.actual(stream))
        return sorted(found, key=str)


@pytest.fixture
def shop(platform: Platform, source: str, topic: Callable[..., str], tmp_path: Path) -> Shop:
    return Shop(platform, source, topic(1), tmp_path)


CLEAN = "select item, cast(price as string) as price from {source}"
ITEM, PRICE, TEXT = column("item", "string"), column("price", "double"), column("price", "string")


def test_bad_records_are_kept_once_and_go_where_they_belong_after_a_fix(
    platform: Platform, shop: Shop, schema: str, produce: Callable[..., int]
) -> None:
    clean, other, late = (f"{schema}.{name}" for name in ("clean", "other", "late"))
    produce(
        shop.topic, [("k1", {"item": "a", "price": 1.5}), ("k2", {"item": "b", "price": "n/a"})], headers={"h": "1"}
    )
    produce(shop.topic, ["{broken", None, {"item": "c", "price": 2}])
    publish = {"topic": f"{shop.topic}-clean"}
    assert shop.deploy(clean, CLEAN, ITEM, PRICE, publish=publish) == "NEW"
    shop.deploy(other, "select item from {source}", ITEM, PRICE)
    assert shop.rows(clean, 2) == ["a", "c"]
    assert shop.rows(other, 2) == ["a", "c"]
    shop.rows(shop.kept, 2, "offset")
    kept = platform.sql(
        "select topic, partition, offset, cast(key as string), headers, cast(value as string), error, "
        f"column_at_fault, source, attempts, replayed_at, timestamp is not null from {shop.kept} order by offset"
    )
    assert [row[:4] for row in kept] == [(shop.topic, 0, 1, "k2"), (shop.topic, 0, 2, None)]
    assert (kept[0][4][0].key, bytes(kept[0][4][0].value)) == ("h", b"1")
    assert kept[0][5:] == (
        '{"item": "b", "price": "n/a"}', "the message does not fit the type of price", "price", shop.source, 0, None,
        True,
    )  # fmt: skip
    assert kept[1][5:8] == ("{broken", "the value is no readable JSON", None)

    with pytest.raises(PenstockError) as caught:
        replay(platform.store, shop.source, where="no_such_column = 1")
    assert caught.value.kind is QUERY_FAILED
    assert shop.deploy(other, "select item from {source}", ITEM, TEXT) == "RESTART"
    with pytest.raises(PenstockError) as caught:  # the other one decodes as before
        replay(platform.store, shop.source)
    assert (caught.value.kind, clean in caught.value.message) == (REPLAY_OUTDATED, True)
    assert shop.deploy(clean, CLEAN, ITEM, TEXT, publish=publish) == "RESTART"
    shop.deploy(late, "select item from {source}", ITEM, TEXT)
    assert shop.rows(late, 3) == ["a", "b", "c"]  # it reads all of the topic, as the source is now
    produce(shop.topic, [{"item": "d", "price": "n/a"}])
    shop.rows(clean, 3)
    told = {"source": shop.source, "replayed": 1, "still_bad": 1}
    to = [{"stream": clean, "records": 1}, {"stream": late, "records": 0}, {"stream": other, "records": 1}]
    assert replay(platform.store, shop.source, dry_run=True) == {**told, "streams": to, "dry_run": True}
    assert shop.rows(clean, 3) == ["a", "c", "d"]
    assert replay(platform.store, shop.source) == {**told, "streams": to, "dry_run": False}
    assert shop.rows(clean, 4) == ["a", "b", "c", "d"]
    again = replay(platform.store, shop.source)
    assert (again["replayed"], again["still_bad"], {each["records"] for each in again["streams"]}) == (0, 1, {0})
    # As if the engine had died before the last mark, and before it gave a record to anyone.
    platform.sql(f"update {shop.kept} set replayed_at = null where replay = 1")
    platform.sql(f"update {shop.kept} set replay = 1 where offset = 1")
    assert replay(platform.store, shop.source)["replayed"] == 1
    for stream in (clean, other, late):
        assert shop.rows(stream, 4) == ["a", "b", "c", "d"]
    published = read_topic(platform.bootstrap, publish["topic"], value=json.loads)
    assert sorted(each.value["item"] for each in published) == ["a", "b", "c", "d"], "its topic has what its table has"
    assert platform.sql(
        f"select offset, attempts, replay, replayed_at is not null from {shop.kept} order by offset"
    ) == [(1, 1, 1, True), (2, 3, None, False)]


@pytest.mark.deep
def test_an_engine_that_dies_in_a_replay_gives_nothing_twice_and_loses_nothing(
    platform: Platform, shop: Shop, schema: str, produce: Callable[..., int]
) -> None:
    streams = [f"{schema}.s{number}" for number in range(3)]
    produce(shop.topic, [{"item": f"i{number:03}", "price": "n/a"} for number in range(200)])
    produce(shop.topic, [{"item": "good", "price": 1}])
    for stream in streams:
        shop.deploy(stream, CLEAN, ITEM, PRICE)
    for stream in streams:
        assert shop.rows(stream, 1) == ["good"]
        shop.deploy(stream, CLEAN, ITEM, TEXT)
    shop.rows(shop.kept, 200, "offset")
    ended = threading.Event()

    def run() -> None:
        try:
            replay(platform.store, shop.source)
        except PenstockError:
            pass  # the engine dies under it
        finally:
            ended.set()

    began = threading.Thread(target=run, daemon=True)
    began.start()
    kept = DeltaTable(str(table_path(platform.paths, shop.kept)))

    def claimed() -> bool:
        kept.update_incremental()
        return any(number is not None for number in kept.to_pyarrow_table(columns=["replay"])["replay"].to_pylist())

    platform.until(claimed, "the records to be claimed", 120)
    killed = platform.endpoint().pid
    os.kill(killed, signal.SIGKILL)
    began.join(180)
    assert ended.is_set()
    platform.until(lambda: platform.endpoint().pid != killed, "another engine", 180)
    replay(platform.store, shop.source)
    wanted = ["good", *(f"i{number:03}" for number in range(200))]
    for stream in streams:
        assert shop.rows(stream, 201) == wanted


def test_a_stream_that_keeps_state_is_not_given_single_records(
    platform: Platform, shop: Shop, schema: str, produce: Callable[..., int]
) -> None:
    sql = "select item, count(item) as n from {source} group by item"
    produce(shop.topic, [{"item": "a"}, {"note": "other"}])
    shop.deploy(f"{schema}.counted", sql, ITEM)
    shop.rows(f"{schema}.counted", 1)
    shop.rows(shop.kept, 1, "offset")
    assert shop.deploy(f"{schema}.counted", sql, ITEM, column("note", "string")) == "RESTART"
    with pytest.raises(PenstockError) as caught:
        replay(platform.store, shop.source)
    assert caught.value.kind is REPLAY_STATEFUL
    assert platform.sql(f"select attempts, replay from {shop.kept}") == [(0, None)]
    with pytest.raises(PenstockError) as caught:
        replay(platform.store, "nowhere")
    assert caught.value.kind is NO_QUARANTINE


PROJECT = """\
name: kept
profile: kept
model-paths: [{schema}/models]
test-paths: [{schema}/tests]
macro-paths: [{schema}/macros]
flags: {{send_anonymous_usage_stats: false}}
models: {{+schema: {schema}}}
"""
PROFILES = "kept: {target: dev, outputs: {dev: {type: penstock, schema: default, kafka: {embedded: true}}}}\n"
NAMES = "{% macro generate_schema_name(name, node) %}{{ name or target.schema }}{% endmacro %}"


def test_dbt_refers_to_the_quarantine_and_tests_it(
    platform: Platform, shop: Shop, schema: str, produce: Callable[..., int]
) -> None:
    root = platform.paths.project
    folder = root / schema
    schema_of_source, _, name = shop.source.partition(".")

    def write(path: str, text: str) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)

    def dbt(*args: str) -> tuple[int, dict[str, str]]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DBT_")}
        command = [warm("dbt"), *args, "--target-path", str(folder / "target")]
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        results = folder / "target" / "run_results.json"
        assert results.exists(), done.stdout
        found = json.loads(results.read_text())["results"]
        return done.returncode, {each["unique_id"].split(".")[2]: each["status"] for each in found}

    def sources(price: str) -> str:
        text = table(f"{{topic: {shop.topic}, on_bad_record: quarantine}}", ITEM, column("price", price))
        return text.replace("name: shop", f"name: {schema_of_source}")

    write("dbt_project.yml", PROJECT.format(schema=schema))
    write("profiles.yml", PROFILES)
    write(f"{schema}/macros/names.sql", NAMES)
    write(f"{schema}/models/sources.yml", sources("double"))
    write(f"{schema}/models/a_bad_clicks.sql", f"select * from {{{{ quarantine('{schema_of_source}', '{name}') }}}}")
    read = f"select item, cast(price as string) as price from {{{{ source('{schema_of_source}', '{name}') }}}}"
    write(f"{schema}/models/clean.sql", "{{ config(materialized='dynamic_table') }}" + read)
    write(f"{schema}/tests/nothing_waits.sql", "select * from {{ ref('a_bad_clicks') }} where replayed_at is null")
    produce(shop.topic, [{"item": "a", "price": 1}, {"item": "b", "price": "n/a"}])
    code, results = dbt("run")  # the view comes before the stream that fills what it shows
    assert (code, results) == (0, {"a_bad_clicks": "success", "clean": "success"})
    shop.rows(f"{schema}.a_bad_clicks", 1, "offset")
    assert dbt("test") == (1, {"nothing_waits": "fail"})
    write(f"{schema}/models/sources.yml", sources("string"))
    assert dbt("run")[0] == 0
    command = [warm("penstock"), "replay", name, "--project-dir", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{shop.source}: 1 records replayed, 0 still do not fit." in done.stdout + done.stderr
    assert shop.rows(f"{schema}.clean", 2) == ["a", "b"]
    assert dbt("test") == (0, {"nothing_waits": "pass"})
