"""A source table: what may be its primary key, and what each mistake is called."""

from __future__ import annotations

from pathlib import Path

import pytest
from source_files import FILE, column, compiled, entries, read_all, table

from penstock.compiler import (
    StreamSpec,
    Verdict,
    compile_source_table,
    plan_change,
    render_job,
    source_changes,
    source_tables,
)
from penstock.compiler.spec import TableInput
from penstock.control.planning import Deployed, Model, plan_streams
from penstock.errors import PenstockError
from penstock.project.source import is_source_table

ID = column("id", "string", **{"from": "key"})
NAME = column("name", "string")
TABLE = "{topic: users, kind: table, primary_key: [id]}"


def test_a_source_is_a_stream_unless_it_says_otherwise(tmp_path: Path) -> None:
    (source,) = read_all(table("{topic: users}", ID, NAME), tmp_path)
    assert (source.is_table, source.primary_key) == (False, ())


@pytest.mark.parametrize("key", ["[id]", "id", "[ID]"])
def test_a_table_knows_its_primary_key_as_it_is_declared(tmp_path: Path, key: str) -> None:
    text = table(f"{{topic: users, kind: table, primary_key: {key}}}", ID, NAME)
    (source,) = read_all(text, tmp_path)
    assert (source.is_table, source.primary_key) == (True, ("id",))
    assert is_source_table(entries(text, tmp_path)[0])


def test_a_key_of_several_columns_may_be_computed_from_the_messages_key(tmp_path: Path) -> None:
    settings = "{topic: users, kind: table, primary_key: [shop, id], key: {format: json}}"
    text = table(settings, column("id", "int", **{"from": "key.id"}), column("raw", "string", **{"from": "key.shop"}),
                 column("shop", "string", expr="upper(raw)"), NAME)  # fmt: skip
    assert read_all(text, tmp_path)[0].primary_key == ("shop", "id")


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ("{topic: users, kind: table}", "PEN-1240", "source table shop.clicks has no primary key"),
        ("{topic: users, kind: table, primary_key: []}", "PEN-1202", "'primary_key' must be given"),
        ("{topic: users, kind: table, primary_key: [idd]}", "PEN-1241", "Did you mean 'id'?"),
        ("{topic: users, kind: table, primary_key: [id, ID]}", "PEN-1241", "names column 'ID' twice"),
        ("{topic: users, kind: table, primary_key: [tags]}", "PEN-1241", "array<string> and cannot be part"),
        ("{topic: users, primary_key: [id]}", "PEN-1242", "is a stream, with a primary key"),
        ("{topic: users, kind: table, primary_key: [name]}", "PEN-1243", "'name' of the primary key"),
        ("{topic: users, kind: table, primary_key: [loud]}", "PEN-1243", "comes from the value. Take the column"),
        ("{topic: users, kind: tabel, primary_key: [id]}", "PEN-1202", "Did you mean 'table'?"),
        (
            "{topic: users, kind: table, primary_key: [id], watermark: {column: at, delay: 1 minute}}",
            "PEN-1244",
            "has a watermark",
        ),
    ],
)
def test_each_mistake_has_its_code_and_its_line(tmp_path: Path, settings: str, code: str, words: str) -> None:
    text = table(settings, ID, NAME, column("loud", "string", expr="upper(name)"), column("tags", "array<string>"),
                 column("at", "timestamp", **{"from": "timestamp"}))  # fmt: skip
    with pytest.raises(PenstockError) as problem:
        read_all(text, tmp_path)
    assert problem.value.code == code
    assert f"{FILE}:5" in str(problem.value)
    assert words in str(problem.value)


def test_a_column_may_not_have_the_name_of_an_added_one(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"PEN-1244.*'_penstock_deleted'.*Rename it"):
        read_all(table(TABLE, ID, column("_penstock_deleted", "string")), tmp_path)


def test_a_model_reads_a_source_table_as_it_stands(tmp_path: Path) -> None:
    spec = compiled(table(TABLE, ID, NAME), tmp_path)
    assert [each.kind for each in spec.inputs] == ["table"]
    assert spec.is_full


def test_a_dynamic_table_may_not_have_the_name_of_a_source(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"PEN-3020.*insertion into source stream/table is not allowed"):
        compiled(table("{topic: clicks}"), tmp_path, name="shop.clicks")


def test_a_source_table_keeps_messages_without_a_value_and_no_message_without_a_key(tmp_path: Path) -> None:
    (entry,) = entries(table(TABLE, ID, NAME), tmp_path)
    spec = compile_source_table(entry, project_dir=tmp_path)
    assert (spec.name, spec.unique_id, spec.path) == ("shop.clicks", "source.shop.shop.clicks", FILE)
    assert (spec.output.relation, spec.output.view) == ("penstock__shop.clicks", "shop.clicks")
    job = render_job(spec)
    assert "where quality in ('good', 'partly bad') or `value` is null" in job
    assert "where `id` is not null" in job


def test_source_tables_are_found_whatever_is_wrong_with_them(tmp_path: Path) -> None:
    (entry,) = entries(table("{topic: users, kind: table}", NAME), tmp_path)
    assert source_tables({"sources": {"x": entry}}) == {"shop.clicks": "x"}


# -- changes ----------------------------------------------------------------------------------------------------------
def spec_of(folder: Path, settings: str, *columns: str) -> StreamSpec:
    return compile_source_table(entries(table(settings, *columns), folder)[0], project_dir=folder)


def test_an_unchanged_source_table_changes_nothing(tmp_path: Path) -> None:
    one, other = (spec_of(tmp_path, TABLE, ID, NAME) for _ in range(2))
    assert plan_change(one, other).verdict is Verdict.NO_OP


@pytest.mark.parametrize(
    ("settings", "columns", "verdict", "reason"),
    [
        (TABLE, (ID, NAME, column("age", "int")), Verdict.REBUILD, "column shop.clicks.age is new"),
        (TABLE, (ID, column("name", "binary")), Verdict.REBUILD, "type of shop.clicks.name STRING -> BINARY"),
        (
            "{topic: users, kind: table, primary_key: [id, k]}",
            (ID, NAME, column("k", "string", **{"from": "key"})),
            Verdict.REBUILD,
            "key (id) -> (id, k)",
        ),
        (
            "{topic: users, kind: table, primary_key: [id], kafka.max.poll.records: 5}",
            (ID, NAME),
            Verdict.RESTART,
            "options of shop.clicks: kafka.max.poll.records",
        ),
    ],
)
def test_a_changed_source_table_says_what_changed(
    tmp_path: Path, settings: str, columns: tuple[str, ...], verdict: Verdict, reason: str
) -> None:
    plan = plan_change(spec_of(tmp_path, TABLE, ID, NAME), spec_of(tmp_path, settings, *columns))
    assert plan.verdict is verdict
    assert reason in plan.reasons


def test_a_source_that_becomes_a_table_is_a_rebuild_of_its_readers(tmp_path: Path) -> None:
    """A stream-table join keeps other offsets than a join of two streams."""
    stream = compiled(table("{topic: users}", ID, NAME), tmp_path)
    joined = stream.model_copy(update={"inputs": (TableInput(relation="shop.clicks"),)})
    assert plan_change(stream, joined).verdict is Verdict.REBUILD


def test_what_changed_of_a_source_is_told_of_each_stream_that_reads_it(tmp_path: Path) -> None:
    old = compiled(table("{topic: clicks}", NAME), tmp_path)
    new = compiled(table("{topic: clicks, start: latest}", NAME, column("age", "int")), tmp_path)
    assert source_changes(None, new) == {"shop.clicks": ()}
    assert source_changes(old, old) == {"shop.clicks": ()}
    assert source_changes(old, new) == {
        "shop.clicks": (
            "column shop.clicks.age is new",
            "start of shop.clicks earliest -> latest (for the next rebuild)",
        )
    }


def test_a_stream_that_joins_a_rebuilt_source_table_starts_again_and_full_refresh_leaves_good_ones_alone(
    tmp_path: Path,
) -> None:
    users, wider = spec_of(tmp_path, TABLE, ID, NAME), spec_of(tmp_path, TABLE, ID, NAME, column("age", "int"))
    base = compiled(table("{topic: clicks}", NAME), tmp_path)
    joined = base.model_copy(update={"inputs": (TableInput(relation=users.name),)})
    deployed = {spec.name: Deployed(spec.name, 1, spec) for spec in (users, joined)}
    planned = {each.stream: each for each in plan_streams([Model(joined), Model(wider)], deployed)}
    assert planned[users.name].verdict is Verdict.REBUILD
    assert planned[joined.name].verdict is Verdict.RESTART
    assert planned[joined.name].reasons == (f"source table {users.name}, which it reads, is rebuilt",)
    (same,) = plan_streams([Model(users)], deployed, full_refresh=True)
    assert same.verdict is Verdict.NO_OP
