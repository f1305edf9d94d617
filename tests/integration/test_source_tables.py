"""Source tables on a real broker and a real engine: the latest row of each key, which nobody else can write."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from source_files import column, entries

from penstock.compiler import StreamSpec, compile_source_table
from penstock.compiler.spec import TableInput
from penstock.control.dropping import dropped_with
from penstock.control.source_tables import deploy_source_table
from penstock.control.streams import drop_stream, restart_stream
from penstock.errors import PenstockError
from penstock.store import StreamState

if TYPE_CHECKING:
    from tests.conftest import MakeSpec, MakeTopic, Platform, Produce
else:
    MakeSpec = MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(300)


def users_spec(schema: str, topic: str, folder: Path, *more: str) -> StreamSpec:
    text = "\n".join([
        "sources:",
        f"  - name: {schema}",
        "    tables:",
        "      - name: users",
        f"        config: {{meta: {{stream: {{kind: table, topic: {topic}, primary_key: id}}}}}}",
        "        columns:",
        *(f"          - {each}" for each in (
            column("id", "int", **{"from": "key"}), column("name", "string"), column("tags", "array<string>"), *more)),
    ])  # fmt: skip
    return compile_source_table(entries(text + "\n", folder)[0], project_dir=folder)


def user(key: int | None, name: str | None, *tags: str) -> tuple[str | None, Any]:
    return None if key is None else str(key), None if name is None else {"name": name, "tags": list(tags)}


def accepted(platform: Platform, statement: str) -> bool:
    try:
        platform.sql(statement)
    except PySparkException:
        return False
    return True


@pytest.mark.parametrize(("limit", "writer"), [(20_000, "delta-rs"), (0, "spark")])
def test_a_source_table_is_the_latest_row_of_each_key_with_either_writer(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce, tmp_path: Path, limit: int, writer: str
) -> None:
    name, users = topic(2, name="users"), f"{schema}.users"
    produce(name, [user(1, "Ada", "a"), user(2, "Bob"), user(1, "Ada Lovelace", "a", "b"), user(2, None)], partition=0)
    produce(name, [user(3, "Cy"), user(None, "nobody"), ("x", {"name": "no number"}), ("3", b"not json")], partition=1)
    spec = users_spec(schema, name, tmp_path).model_copy(update={"small_batch_rows": limit})
    platform.endpoint()
    made = deploy_source_table(platform.store, platform.paths, spec)
    assert made.made.verdict == "NEW"

    def look() -> list[tuple[Any, ...]]:
        return platform.sql(f"select * from {users} order by id")

    assert look() == [(1, "Ada Lovelace", ["a", "b"]), (3, "Cy", [])], "it is filled when it is deployed"
    assert platform.store.progress(users)[-1].writer == writer

    now = time.time_ns() // 1_000_000
    produce(name, [user(3, None), user(4, "Di")], partition=1, timestamp=now)
    produce(name, [user(2, "Bob again"), user(4, "moved here later")], partition=0, timestamp=now + 1)
    wanted = [(1, "Ada Lovelace", ["a", "b"]), (2, "Bob again", []), (4, "moved here later", [])]
    platform.until(lambda: look() == wanted, "the changes", last=look)

    # It goes on from its own state: nothing is read twice.
    read = platform.store.actual(users).total_rows_in
    restart_stream(platform.store, users)
    produce(name, [user(1, None)], partition=0)
    platform.until(lambda: look() == wanted[1:], "the change after the restart", last=look)
    assert platform.store.actual(users).total_rows_in == read + 1

    assert not deploy_source_table(platform.store, platform.paths, spec).made.changed
    refused = [
        f"insert into {users} values (9, 'x', array())",
        f"insert overwrite {users} select 9, 'x', array('a')",
        f"update {users} set name = 'x'",
        f"delete from {users}",
        f"merge into {users} t using (select 1 as id) s on t.id = s.id when matched then delete",
        f"truncate table {users}",
        f"alter table {users} add column x int",
        f"create table {users} (id int) using delta",
        f"create or replace table {users} (id int) using delta",
        f"create or replace table {users} using delta as select 1 as id",
    ]
    assert [statement for statement in refused if accepted(platform, statement)] == []
    assert look() == wanted[1:]

    # A view can be dropped by whoever can drop a table; the rows are not in it.
    platform.sql(f"drop view {users}")
    restart_stream(platform.store, users)
    assert look() == wanted[1:]


def test_a_stream_joins_a_source_table_as_it_stands_and_starts_again_when_it_is_rebuilt(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce, make_spec: MakeSpec, tmp_path: Path
) -> None:
    name, clicks, users = topic(name="users"), topic(name="clicks"), f"{schema}.users"
    produce(name, [user(1, "Ada")])
    platform.endpoint()
    deploy_source_table(platform.store, platform.paths, users_spec(schema, name, tmp_path))
    sql = f"select i.k, u.name from input i left join {users} u on u.id = i.v"
    joined = make_spec("joined", clicks, sql)
    joined = joined.model_copy(update={"inputs": (*joined.inputs, TableInput(relation=users))})
    platform.deploy(joined)

    def look() -> list[tuple[Any, ...]]:
        return sorted(platform.sql(f"select k, name from {joined.name}"))

    produce(clicks, [{"k": "first", "v": 1}])
    platform.until(lambda: look() == [("first", "Ada")], "the first click", last=look)
    produce(name, [user(1, "Ada Lovelace")])
    platform.until(lambda: platform.sql(f"select name from {users}") == [("Ada Lovelace",)], "the new name")
    produce(clicks, [{"k": "second", "v": 1}])
    platform.until(lambda: look()[1:] == [("second", "Ada Lovelace")], "the second click", last=look)

    wider = users_spec(schema, name, tmp_path, column("age", "int"))
    with pytest.raises(PenstockError, match=rf"PEN-3005.*age is new.*{joined.name} will be started again"):
        deploy_source_table(platform.store, platform.paths, wider)
    before = platform.store.actual(joined.name).run_id
    produce(name, [("1", {"name": "Ada", "age": 36})])
    done = deploy_source_table(platform.store, platform.paths, wider, full_refresh=True)
    assert (done.made.verdict, done.made.beside, done.restarted) == ("REBUILD", True, (joined.name,))
    assert platform.sql(f"select id, name, age from {users}") == [(1, "Ada", 36)]
    platform.until(
        lambda: platform.store.actual(joined.name).run_id not in (None, before), f"{joined.name} to be started again"
    )
    produce(clicks, [{"k": "third", "v": 1}])
    platform.until(lambda: look()[2:] == [("third", "Ada")], "the third click", last=look)

    with pytest.raises(PenstockError, match=f"PEN-3023.*read by {joined.name}"):
        dropped_with(platform.store, users)
    drop_stream(platform.store, joined.name)
    assert dropped_with(platform.store, users) == []
    drop_stream(platform.store, users)
    assert platform.sql(f"show tables in {schema}") == []
    assert platform.sql(f"show tables in penstock__{schema}") == []
    assert platform.store.actual(users).state is StreamState.PENDING, "it is forgotten"
