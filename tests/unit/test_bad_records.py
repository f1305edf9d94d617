"""Bad records on the pure side: settings, the SQL that judges, counts, and how a failure is told."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from source_files import column, compiled, read_all, table
from sqlalchemy import create_engine, text
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.compiler import StreamSpec, Verdict, plan_change, render_job
from penstock.compiler.decoding import judged, rows, select
from penstock.compiler.quality import RAISED, problem
from penstock.compiler.spec import Column, KafkaInput
from penstock.engine import failures
from penstock.errors import PenstockError
from penstock.errors.catalogue import BAD_RECORD
from penstock.paths import ProjectPaths
from penstock.store import Progress, RecordCounts, Store

NAME = "shop.m"


def of(spec: StreamSpec) -> KafkaInput:
    source = spec.inputs[0]
    assert isinstance(source, KafkaInput)
    return source


def chosen(source: str, tmp_path: Path, **config: object) -> str:
    return of(compiled(table(f"{{topic: t{source}}}"), tmp_path, **config)).on_bad_record


def test_a_model_s_choice_goes_before_the_source_s_and_yaml_s_null_is_a_choice(tmp_path: Path) -> None:
    assert chosen("", tmp_path) == "null"
    assert chosen(", on_bad_record: null", tmp_path) == "null"
    assert chosen(", on_bad_record: skip", tmp_path) == "skip"
    assert chosen(", on_bad_record: skip", tmp_path, on_bad_record="fail") == "fail"
    assert chosen(", on_bad_record: skip", tmp_path, on_bad_record=None) == "null"
    assert chosen(", on_bad_record: skip", tmp_path, on_bad_record="null") == "null"


def test_a_misspelt_choice_is_told_with_the_right_word(tmp_path: Path) -> None:
    with pytest.raises(PenstockError) as caught:
        read_all(table("{topic: t, on_bad_record: skipp}"), tmp_path)
    assert str(caught.value).startswith("PEN-1202 sources/shop.yml:5:")
    assert "skip" in str(caught.value.hint)
    with pytest.raises(PenstockError) as caught:
        chosen("", tmp_path, on_bad_record="quarantaine")
    assert (caught.value.code, caught.value.hint) == ("PEN-1302", "Did you mean 'quarantine'?")


def test_another_choice_restarts_the_stream_and_keeps_its_state(tmp_path: Path) -> None:
    sql = "select b, count(*) as n from shop.clicks group by b"
    text = table("{topic: t}", column("a", "int"), column("b", "string"))
    old, new = (compiled(text, tmp_path, sql=sql, on_bad_record=each) for each in ("null", "skip"))
    plan = plan_change(old, new)
    assert (plan.verdict, plan.reasons) == (Verdict.RESTART, ("on_bad_record of shop.clicks null -> skip",))


def test_all_columns_are_judged_unless_what_does_not_fit_is_null(tmp_path: Path) -> None:
    text = table("{topic: t}", column("a", "int"), column("b", "date"), column("h", "int", **{"from": "header(h)"}))
    as_null = render_job(compiled(text, tmp_path, sql="select a from shop.clicks"))
    skipped = render_job(compiled(text, tmp_path, sql="select a from shop.clicks", on_bad_record="skip"))
    assert ("'`a` INT, `_unfit` STRING'" in as_null, "includeHeaders" in as_null) == (True, False)
    assert ("'`a` INT, `b` DATE, `_unfit` STRING'" in skipped, "includeHeaders" in skipped) == (True, True)
    assert "where quality = 'good'" in skipped
    assert "message.`b` as" not in skipped  # judged, but not handed on


def test_the_mark_never_takes_the_name_of_a_field(tmp_path: Path) -> None:
    text = table("{topic: t}", column("_unfit", "int"), column("x", "int", **{"from": "value.__unfit"}))
    assert "`___unfit` STRING" in judged(of(compiled(text, tmp_path)), "records")


def test_a_view_for_queries_judges_nothing(tmp_path: Path) -> None:
    sql = select(of(compiled(table("{topic: t}"), tmp_path)), "records", nulls=True)
    assert ("quality" in sql, "where" in sql, "_unfit" in sql) == (False, False, False)


# -- the SQL, whatever the source -------------------------------------------------------------------------------------
_TYPES = ["STRING", "INT", "DATE", "BINARY", "ARRAY<INT>", "STRUCT<`x y`: INT>", "DECIMAL(10,2)"]
_NAMES = st.text(st.characters(codec="utf-8", exclude_characters=".\0", exclude_categories=("Cs", "Cc")), min_size=1)


@st.composite
def sources(draw: st.DrawFn) -> KafkaInput:
    value, key = draw(st.sampled_from(["json", "csv", "string", "raw"])), draw(st.sampled_from(["json", "string"]))
    origins = ["key" if key == "string" else "key.k", "header(h)", "headers", "offset", "timestamp"]
    count = draw(st.integers(1, 5))
    columns = []
    for number in range(count):
        field = f"value.{draw(_NAMES)}" if value in ("json", "csv") else "value"
        origin = draw(st.sampled_from([field, field, *origins]))
        kind = {"headers": "ARRAY<STRUCT<`key`: STRING, `value`: BINARY>>", "offset": "BIGINT"}.get(origin)
        kind = kind or ("TIMESTAMP" if origin == "timestamp" else draw(st.sampled_from(_TYPES[:4])))
        columns.append(Column(name=f"c{number}", type=kind, origin=origin))
    return KafkaInput(
        view="v", relation="s.t", topic="t", key_format=key, value_format=value, columns=tuple(columns),
        on_bad_record=draw(st.sampled_from(["null", "skip", "quarantine", "fail"])),
    )  # fmt: skip


@settings(deadline=None)
@given(source=sources(), data=st.data())
def test_the_sql_is_one_that_spark_reads_whatever_the_columns_are(source: KafkaInput, data: st.DataObject) -> None:
    wanted = data.draw(st.none() | st.sets(st.sampled_from([each.name for each in source.columns])))
    for sql in (
        judged(source, "records", wanted=wanted),
        rows(source, "judged", wanted=wanted),
        select(source, "records", wanted=wanted),
        f"select {problem(source)} from records",
    ):
        assert len(sqlglot.parse(sql, dialect="spark")) == 1
    ast.parse(render_job(_spec(source)))


@settings(deadline=None)
@given(source=sources())
def test_only_fail_can_end_a_stream_and_only_null_keeps_what_is_partly_bad(source: KafkaInput) -> None:
    sql = judged(source, "records")
    assert ("raise_error" in sql) == (source.on_bad_record == "fail")
    assert ("'partly bad'" in rows(source, "judged")) == (source.on_bad_record == "null")


def _spec(source: KafkaInput) -> StreamSpec:
    from penstock.compiler.spec import Output, OutputMode

    return StreamSpec(
        name=NAME, unique_id="model.shop.m", path="models/m.sql", sql="select * from v", stateful=False,
        inputs=(source,), output=Output(relation=NAME, mode=OutputMode.APPEND),
    )  # fmt: skip


# -- how it is told ---------------------------------------------------------------------------------------------------
def test_the_record_that_ended_a_stream_is_named_with_its_place_and_column(tmp_path: Path) -> None:
    spec = compiled(table("{topic: t, on_bad_record: fail}"), tmp_path)
    told = {"column": "a", "error": "the message does not fit the type of a"}
    where = {"topic": "t", "partition": 3, "offset": 17, "problem": told}
    trace = f"Job aborted\nCaused by: SparkRuntimeException: [USER_RAISED_EXCEPTION] {RAISED} {json.dumps(where)} SQLS…"
    error = failures.of_stream(trace, spec)
    assert error.kind is BAD_RECORD
    assert "topic 't', partition 3, offset 17, column 'a': the message does not fit the type of a." in error.message
    where["problem"] = {"error": "the value is no readable JSON"}
    assert "offset 17: the value is" in failures.of_stream(f"{RAISED} {json.dumps(where)}", spec).message


# -- counts -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def paths(tmp_path: Path) -> ProjectPaths:
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    return ProjectPaths(tmp_path)


def batch(number: int) -> Progress:
    return Progress(NAME, 1, number, at=float(number), rows_in=9, rows_out=5, duration_ms=50, writer="delta-rs")


def read(store: Store, number: int, counts: RecordCounts, token: int = 1) -> None:
    store.record_progress(batch(number), engine_token=token, counts={"shop.clicks": counts})


def test_counts_add_up_survive_restarts_and_begin_anew_with_a_rebuild(paths: ProjectPaths) -> None:
    store = Store.open(paths.store)
    store.deploy(NAME, "{}", "h", verdict="NEW", new_checkpoint=True)
    read(store, 0, RecordCounts(9, 1, 2, 3, 5.0))
    read(store, 1, RecordCounts(2, 1))
    store.close()
    store = Store.open(paths.store)
    read(store, 2, RecordCounts(100, 50, 25, 25), token=0)  # a replaced engine's
    assert store.record_counts() == {NAME: {"shop.clicks": RecordCounts(11, 2, 2, 3, 5.0)}}
    store.deploy(NAME, "{}", "h2", verdict="RESTART", new_checkpoint=False)
    assert store.record_counts()[NAME]["shop.clicks"].records == 11
    store.deploy(NAME, "{}", "h2", verdict="REBUILD", new_checkpoint=True)
    assert store.record_counts() == {}
    read(store, 0, RecordCounts(1))
    store.forget(NAME)
    assert store.record_counts() == {}


def test_a_store_of_the_version_before_gets_the_new_tables(paths: ProjectPaths) -> None:
    Store.open(paths.store).close()
    engine = create_engine(f"sqlite:///{paths.store}")
    with engine.begin() as tx:
        tx.execute(text("drop table records"))
        tx.execute(text("update meta set value = '1' where key = 'schema_version'"))
    engine.dispose()
    store = Store.open(paths.store)
    read(store, 0, RecordCounts(1))
    assert store.record_counts()[NAME]["shop.clicks"].records == 1


def test_status_and_describe_show_the_counts_of_every_source(paths: ProjectPaths, tmp_path: Path) -> None:
    spec = compiled(table("{topic: t}"), tmp_path)
    store = Store.open(paths.store)
    store.deploy(NAME, spec.to_json(), spec.hash, verdict="NEW", new_checkpoint=True)
    read(store, 0, RecordCounts(1234, 1, 22, 333, 5.0))
    run = CliRunner().invoke(app, ["status", "--project-dir", str(paths.project)])
    assert re.search(r"SOURCE +READ BY +RECORDS +EMPTY +BAD +PARTLY BAD", run.stdout)
    assert re.search(r"shop.clicks +shop.m +1,234 +1 +22 +333", run.stdout)
    run = CliRunner().invoke(app, ["status", "--project-dir", str(paths.project), "--output", "json"])
    told = {"source": "shop.clicks", "records": 1234, "empty": 1, "bad": 22, "partly_bad": 333, "last_at": 5.0}
    assert json.loads(run.stdout)["streams"][0]["records"] == [told]
    run = CliRunner().invoke(app, ["describe", NAME, "--project-dir", str(paths.project), "--output", "json"])
    assert json.loads(run.stdout)["records"] == [told]
    run = CliRunner().invoke(app, ["describe", NAME, "--project-dir", str(paths.project)])
    assert "1,234, 1 empty, 22 bad, 333 partly bad" in run.stdout
