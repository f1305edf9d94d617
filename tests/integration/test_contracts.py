"""Contracts, constraints and columns that change, on real Delta tables with both writers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from model_files import Project

from penstock.compiler.spec import OutputMode, TableStreamInput
from penstock.control.planning import Model
from penstock.control.project_plan import project_plan
from penstock.control.streams import drop_stream
from penstock.errors import PenstockError
from penstock.errors.catalogue import CHANGE_NEEDS_REBUILD, CONSTRAINT_BROKEN, CONTRACT_BROKEN
from penstock.store import StreamState

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.compiler.spec import StreamSpec

Platform = Any
pytestmark = pytest.mark.timeout(600)


def with_output(spec: StreamSpec, **changes: object) -> StreamSpec:
    return spec.model_copy(update={"output": spec.output.model_copy(update=changes)})


def test_a_broken_contract_is_an_error_before_anything_starts(
    platform: Platform, make_spec: Callable[..., StreamSpec], topic: Callable[..., str]
) -> None:
    spec = make_spec("kept", topic(), "select k, v, part from input")
    broken = with_output(spec, contract=(("K", "STRING"), ("v", "INT"), ("other", "DATE")))
    with pytest.raises(PenstockError) as caught:
        platform.deploy(broken)
    assert caught.value.kind is CONTRACT_BROKEN
    said = str(caught.value)
    assert "column v is bigint, not int" in said
    assert "column other is missing" in said
    assert "column part is not in it" in said
    assert platform.store.find_desired(spec.name) is None
    assert platform.sql(f"show tables in default like '{spec.name}'") == []
    kept = with_output(spec, contract=(("k", "STRING"), ("v", "BIGINT"), ("part", "INT")))
    assert platform.deploy(kept).verdict == "NEW"


def test_a_row_that_breaks_a_constraint_fails_its_batch_and_nothing_of_it_is_written(
    platform: Platform,
    make_spec: Callable[..., StreamSpec],
    topic: Callable[..., str],
    produce: Callable[..., int],
) -> None:
    # Given: rows that are appended and replaced by key, by either writer, and computed anew as a whole.
    name = topic()
    checks = (("k_not_null", "`k` is not null"), ("positive", "v > 0"))
    specs = [
        with_output(
            make_spec(f"{mode.value}_{small}", name, "select k, v from input", small_batch_rows=small),
            mode=mode, keys=("k",) if mode is OutputMode.UPSERT else (), checks=checks,
        )
        for mode, small in (
            (OutputMode.APPEND, 20_000), (OutputMode.APPEND, 0), (OutputMode.UPSERT, 20_000), (OutputMode.UPSERT, 0),
            (OutputMode.REPLACE, 20_000),
        )
    ]  # fmt: skip

    def become(*want: tuple[str, int]) -> None:
        for spec in specs:
            rows = lambda spec=spec: sorted(platform.sql(f"select k, v from {spec.name}"))  # noqa: E731
            platform.until(lambda rows=rows: rows() == [*want], f"the rows of {spec.name}", 90, rows)

    for spec in specs:
        platform.deploy(spec)
    produce(name, [{"k": "a", "v": 1}])
    become(("a", 1))
    produce(name, [{"k": "b", "v": -1}])
    for spec in specs:
        failed = platform.state(spec.name, StreamState.FAILED, StreamState.QUARANTINED)
        assert failed.error_code == CONSTRAINT_BROKEN.code
        assert platform.sql(f"select k, v from {spec.name}") == [("a", 1)]
    # Without the constraint the same message goes in: the change of it is no rebuild.
    for spec in specs:
        assert platform.deploy(with_output(spec, checks=())).verdict == "RESTART"
    become(("a", 1), ("b", -1))
    with pytest.raises(PenstockError) as caught:
        platform.deploy(specs[0])
    assert caught.value.kind is CONSTRAINT_BROKEN


BEFORE = "select k, v, part from {%s}"
AFTER = {
    "ignore": "select k, v, part, v + 1 as w from {%s}",
    "append_new_columns": "select k, v + 1 as w, v from {%s}",
    "sync_all_columns": "select k, cast(v as double) as v, v + 1 as w from {%s}",
}
# The columns of the table in the end, its rows, and those of one that is computed anew.
BECOMES: dict[str, tuple[str, list[Any], list[Any]]] = {
    "ignore": ("k v part", [("a", 1, 0), ("b", 2, 0)], []),
    "append_new_columns": (
        "k v part w", [("a", 1, 0, None), ("b", 2, None, 3)], [("a", 1, None, 2), ("b", 2, None, 3)],
    ),
    "sync_all_columns": ("k v w", [("a", 1.0, None), ("b", 2.0, 3)], [("a", 1.0, 2), ("b", 2.0, 3)]),
}  # fmt: skip
TOLD = {
    "ignore": ["column w is new and is left out"],
    "append_new_columns": ["column w is new and is added", "column part is gone and stays, null in new rows"],
    "sync_all_columns": [
        "column w is new and is added", "column part is gone and is dropped", "column v bigint -> double in all rows",
    ],
}  # fmt: skip
# Further changes, and why they need a rebuild.
REFUSED = {
    "ignore": ("select k, v from {%s}", "column part is gone"),
    "append_new_columns": ("select k, cast(v as string) as v from {%s}", "column v bigint -> string"),
    "sync_all_columns": ("select k, cast(v as int) as v from {%s}", "column v double -> int"),
}


# Tables whose rows are appended, replaced by key and computed anew, and one that follows another.
KINDS = {
    "ignore": ("rows", "kept"),
    "append_new_columns": ("rows", "full", "followed"),
    "sync_all_columns": ("rows", "kept", "full", "followed"),
}


def models(schema: str, topic: str, sql: dict[str, str]) -> dict[str, StreamSpec]:
    project = Project(schema)
    project.source("events", topic, {"k": "string", "v": "bigint", "part": "int from partition"})
    project.model("latest", BEFORE % "events", unique_key="k")
    for how, text in sql.items():
        for kind in KINDS[how]:
            own: dict[str, Any] = {"kept": {"unique_key": "k", "small_batch_rows": 0}, "full": {"refresh_mode": "full"}}
            above = "latest" if kind == "followed" else "events"
            project.model(f"{how}_{kind}", text % above, on_schema_change=how, **own.get(kind, {}))
    return project.specs()


def planned(platform: Platform, *specs: StreamSpec) -> tuple[str, tuple[str, ...]]:
    """The verdict of `penstock plan` on the first of some models."""
    models = [Model(spec) for spec in specs]
    made, _ = project_plan(platform.store, platform.paths, platform.settings.kafka, models, project=None, engine=True)
    return made[0].verdict.value, made[0].reasons


def test_columns_change_under_a_running_stream_as_dbt_has_it(
    platform: Platform, schema: str, topic: Callable[..., str], produce: Callable[..., int]
) -> None:
    # Given: streams of every kind with a row each.
    name = topic()
    old, new = (models(schema, name, sql) for sql in (dict.fromkeys(AFTER, BEFORE), AFTER))
    assert all(spec.follow for each, spec in old.items() if each.endswith("_followed"))
    checkpoints = {each: platform.deploy(spec).checkpoint for each, spec in old.items()}
    produce(name, [{"k": "a", "v": 1}])

    def rows(each: str) -> list[Any]:
        found: list[Any] = sorted(platform.sql(f"select * from {schema}.{each}"))
        return found

    def become(each: str, want: list[Any]) -> None:
        platform.until(
            lambda: rows(each) == want, f"the rows of {each}", 90,
            lambda: (rows(each), platform.store.actual(f"{schema}.{each}")),
        )  # fmt: skip

    for each in old:
        become(each, [("a", 1, 0)])
    # When: their queries get other columns. Then: the plan is what happens, and the streams go on from their place.
    del old["latest"], new["latest"]
    for each, spec in new.items():
        how = each.rpartition("_")[0]
        plan = planned(platform, spec)
        made = platform.deploy(spec)
        assert (made.verdict, made.checkpoint) == ("RESTART", checkpoints[each])
        assert plan == ("RESTART", made.reasons)
        assert list(made.reasons)[-len(TOLD[how]) :] == TOLD[how], each
    produce(name, [{"k": "b", "v": 2}])
    for each in new:
        columns, kept, anew = BECOMES[each.rpartition("_")[0]]
        become(each, anew if each.endswith("_full") else kept)
        found = [row[0] for row in platform.sql(f"describe {schema}.{each}")]
        assert found == columns.split(), each
    # No version of a table was without the row that it had.
    for each in ("sync_all_columns_rows", "sync_all_columns_kept"):
        place = platform.paths.warehouse / f"{schema}.db" / each
        counts = [
            DeltaTable(place, version=version).to_pyarrow_table().num_rows
            for version in range(DeltaTable(place).version() + 1)
        ]
        assert counts == sorted(counts), each
    # What does not fit is a rebuild; the same words for plan and run.
    for how, (sql, why) in REFUSED.items():
        each = f"{how}_rows"
        spec = models(schema, name, {how: sql})[each]
        assert planned(platform, spec) == ("REBUILD", (why,))
        with pytest.raises(PenstockError, match=why) as caught:
            platform.deploy(spec)
        assert caught.value.kind is CHANGE_NEEDS_REBUILD
    # Another setting with the same query: what was left out is added now.
    later = with_output(new["ignore_rows"], on_schema_change="append_new_columns")
    assert platform.deploy(later).verdict == "RESTART"
    produce(name, [{"k": "c", "v": 3}])
    become("ignore_rows", [("a", 1, 0, None), ("b", 2, 0, None), ("c", 3, 0, 4)])


def test_columns_of_a_table_that_is_read_as_a_stream_are_not_dropped_under_the_reader(
    platform: Platform, make_spec: Callable[..., StreamSpec], topic: Callable[..., str], produce: Callable[..., int]
) -> None:
    name = topic()
    old = with_output(make_spec("read", name, "select k, v from input"), on_schema_change="sync_all_columns")
    reader = make_spec("reader", name, "select k from above")
    reader = reader.model_copy(update={"inputs": (TableStreamInput(view="above", relation=old.name),)})
    narrower = old.model_copy(update={"sql": "select k from input"})
    platform.deploy(old)
    platform.deploy(reader)
    produce(name, [{"k": "a", "v": 1}])
    platform.until(lambda: platform.sql(f"select * from {reader.name}") == [("a",)], "the reader's row", 90)
    assert planned(platform, narrower, reader) == ("REBUILD", ("column v is gone, and other streams read the table",))
    with pytest.raises(PenstockError, match="other streams read the table") as caught:
        platform.deploy(narrower)
    assert caught.value.kind is CHANGE_NEEDS_REBUILD
    assert platform.sql(f"select * from {old.name}") == [("a", 1)]
    # Without the reader it is dropped; the constraint that named it goes with it, and rows must hold the new one.
    drop_stream(platform.store, reader.name)
    named = with_output(old, checks=(("known", "v is not null"),))
    assert platform.deploy(named).verdict == "RESTART"
    with pytest.raises(PenstockError) as broken:
        platform.deploy(with_output(narrower, checks=(("short", "k <> 'a'"),)))
    assert broken.value.kind is CONSTRAINT_BROKEN
    assert platform.sql(f"select * from {old.name}") == [("a", 1)], "nothing has changed"
    kept = dict(platform.sql(f"show tblproperties {old.name}"))
    assert kept["delta.constraints.known"] == "v is not null"
    assert "delta.constraints.short" not in kept
    assert platform.deploy(with_output(narrower, checks=(("long", "k <> ''"),))).verdict == "RESTART"
    produce(name, [{"k": "b", "v": None}])
    platform.until(lambda: sorted(platform.sql(f"select * from {old.name}")) == [("a",), ("b",)], "the rows", 90)
