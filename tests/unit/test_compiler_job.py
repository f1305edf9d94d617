"""Any text of a user's is safe in a job: it stays Python, and it stays the same text."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.compiler import render_job, sqltext
from penstock.compiler.spec import (
    Column,
    KafkaInput,
    MessageType,
    Output,
    OutputMode,
    Publish,
    Schema,
    StreamSpec,
    TableInput,
    TableStreamInput,
    Trigger,
    Watermark,
)
from penstock.compiler.text import block, literal

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
NASTY = [
    '"""',
    "'''",
    "\\",
    'a\\"""b',
    "x\r\ny",
    "tab\t",
    "trail   \nnext",
    "\x00\x1b",
    "é😀\u2028",
    '"',
    "'",
    "{x}",
    "",
]


def spec(**changes: object) -> StreamSpec:
    source = KafkaInput(
        view="shop__clicks",
        relation="shop.clicks",
        topic="clicks",
        columns=(Column(name="item_id", type="STRING", origin="value.item_id"),),
    )
    values: dict[str, object] = {
        "name": "shop.clean",
        "unique_id": "model.shop.clean",
        "path": "models/clean.sql",
        "sql": "select 1",
        "stateful": False,
        "inputs": (source,),
        "output": Output(relation="shop.clean", mode=OutputMode.APPEND),
    }
    return StreamSpec.model_validate(values | changes)


def kafka(**changes: object) -> KafkaInput:
    source = spec().inputs[0]
    assert isinstance(source, KafkaInput)
    return source.model_copy(update=changes)


def assigned(job: str, name: str) -> ast.expr:
    for node in ast.parse(job).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return node.value
    raise AssertionError(name)


@given(TEXTS)
def test_any_text_is_a_literal_and_a_block(text: str) -> None:
    assert ast.literal_eval(literal(text)) == text
    assert ast.literal_eval(block(text)) == f"\n{text}\n"
    assert "\n" not in literal(text)


def test_nasty_texts_are_literals_and_blocks() -> None:
    for text in NASTY:
        assert ast.literal_eval(literal(text)) == text
        assert ast.literal_eval(block(text)) == f"\n{text}\n"


@settings(max_examples=60)
@given(sql=TEXTS, topic=TEXTS, column=TEXTS, header=TEXTS, path=TEXTS)
def test_any_text_makes_a_job_that_is_python_with_the_same_sql(
    sql: str, topic: str, column: str, header: str, path: str
) -> None:
    columns = (
        Column(name=column, type="STRING", origin=f"header({header})"),
        Column(name=f"{column}2", type="STRING", origin=f"value.{column.replace('.', '')}"),
    )
    source = kafka(topic=topic, columns=columns, watermark=Watermark(column=column, delay="1 minute"))
    output = Output(relation=topic, mode=OutputMode.UPSERT, keys=(column,))
    job = render_job(spec(sql=sql, path=path, inputs=(source,), output=output, name=topic))
    assert ast.literal_eval(assigned(job, "SQL")) == f"\n{sql}\n"
    texts = {node.value for node in ast.walk(ast.parse(job)) if isinstance(node, ast.Constant)}
    assert {topic, column} <= texts
    assert sqltext.text(header) in ast.literal_eval(assigned(job, "SHOP__CLICKS"))


def test_a_nasty_job_is_still_formatted(tmp_path: Path) -> None:
    columns = tuple(
        Column(name=f"{text}{number}", type="STRING", origin=f"header({text})") for number, text in enumerate(NASTY)
    )
    for number, text in enumerate(NASTY):
        job = render_job(spec(sql=f"select {text}", inputs=(kafka(topic=text, columns=columns, relation=text),)))
        (tmp_path / f"job{number}.py").write_text(job, encoding="utf-8", newline="")
    ruff = Path(sys.executable).parent / "ruff"
    done = subprocess.run(
        [str(ruff), "format", "--diff", "--isolated", "--no-cache", "--line-length", "120", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


def test_a_batch_waits_only_when_a_buffer_is_asked_for() -> None:
    at_once = render_job(spec())
    buffered = render_job(spec(trigger=Trigger(buffer_limit=500, time_window_ms=3000)))
    assert "minOffsetsPerTrigger" not in at_once
    assert "continuous=True" in at_once
    assert '.option("minOffsetsPerTrigger", 500)\n        .option("maxTriggerDelay", "3000ms")' in buffered
    assert "continuous=True" in buffered  # a trigger of 3 s would look at a full buffer only then


def test_the_buffer_is_never_larger_than_a_batch() -> None:
    job = render_job(spec(trigger=Trigger(buffer_limit=500, max_batch_rows=100)))
    assert '.option("minOffsetsPerTrigger", 100)' in job


def test_a_sources_own_fetch_wait_is_kept() -> None:
    job = render_job(spec(inputs=(kafka(options=(("kafka.fetch.max.wait.ms", "5"),)),)))
    assert job.count("kafka.fetch.max.wait.ms") == 1
    assert '.option("kafka.fetch.max.wait.ms", "5")' in job


def test_headers_are_read_only_when_a_column_needs_them() -> None:
    assert "includeHeaders" not in render_job(spec())
    needing = kafka(columns=(Column(name="t", type="STRING", origin="header(t)"),))
    assert '.option("includeHeaders", "true")' in render_job(spec(inputs=(needing,)))


def test_keys_with_a_schema_are_decoded_only_when_a_column_needs_them() -> None:
    schema = Schema(framed=False, types=(MessageType(content='"string"'),))
    key = Column(name="k", type="STRING", origin="key", read_as="STRING")
    source = kafka(key_format="avro", key_schema=schema, columns=(*kafka().columns, key))
    for sql, decoded in (("select item_id from shop__clicks", False), ("select k from shop__clicks", True)):
        job = render_job(spec(inputs=(source,), sql=sql))
        assert ("SHOP__CLICKS__MESSAGES = (" in job, "runtime.decoded(" in job) == (decoded, decoded)


def test_nested_paths_share_one_schema() -> None:
    columns = (
        Column(name="a", type="INT", origin="value.x.a"),
        Column(name="b", type="STRING", origin="value.x.deep.b"),
        Column(name="c", type="STRING", origin="value.c"),
    )
    job = render_job(spec(inputs=(kafka(columns=columns),)))
    assert "`x` STRUCT<`a`: INT, `deep`: STRUCT<`b`: STRING>>, `c` STRING" in job


def test_a_plain_table_needs_no_view() -> None:
    job = render_job(spec(inputs=(*spec().inputs, TableInput(relation="shop.items"))))
    assert "items" not in job


ROWS = TableStreamInput(view="shop__rows", relation="shop.rows")
UPSERT = Output(relation="shop.clean", mode=OutputMode.UPSERT, keys=("k",))
IN_ORDER = '.option("maxFilesPerTrigger", "1")'


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"output": UPSERT}, True),
        ({"publish": Publish(topic="out", key=("k",))}, True),
        ({}, False),
        ({"publish": Publish(topic="out")}, False),
        ({"output": UPSERT, "stateful": True}, False),
    ],
    ids=["unique_key", "published by a key", "appended", "published without a key", "state"],
)
def test_a_table_is_read_file_by_file_where_the_rows_of_a_key_have_an_order(
    changes: dict[str, object], expected: bool
) -> None:
    job = render_job(spec(inputs=(ROWS,), sql="select * from shop__rows", **changes))
    assert (IN_ORDER in job) is expected
    assert ("in_order=True" in job) is expected


def test_what_is_joined_is_brought_to_the_rows_where_they_have_an_order() -> None:
    sql = "select r.k, i.name from shop__rows as r join shop.items as i on i.id = r.k"
    inputs = (ROWS, TableInput(relation="shop.items"))
    hinted = sql.replace("select", "select /*+ BROADCAST(i) */")
    for changes in ({"output": UPSERT}, {"publish": Publish(topic="out", key=("k",))}):
        job = render_job(spec(inputs=inputs, sql=sql, **changes))
        assert ast.literal_eval(assigned(job, "SQL")) == f"\n{hinted}\n"
    assert ast.literal_eval(assigned(render_job(spec(inputs=inputs, sql=sql)), "SQL")) == f"\n{sql}\n"
