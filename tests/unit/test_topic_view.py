"""A source as a view: the statements, what they must not hold, and when a source is the same."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from source_files import column, entries, table

from penstock.compiler import compile_source
from penstock.compiler.spec import KafkaInput
from penstock.compiler.topic_view import (
    PROPERTIES,
    create_records,
    create_view,
    fingerprint,
    key,
    position_columns,
    reader_options,
)
from penstock.engine.properties import PropertiesFile


def source(stream: str, *columns: str, project: Path) -> KafkaInput:
    return compile_source(entries(table(stream, *columns), project)[0], project_dir=project)


def test_the_statements_of_a_source(tmp_path: Path) -> None:
    made = source("{topic: clicks}", column("item", "string"), column("_offset", "int"), project=tmp_path)
    assert (
        create_view(made)
        == """\
create or replace view `shop`.`clicks`
comment 'Source shop.clicks: topic \\'clicks\\'.'
tblproperties ('penstock.source' = 'shop.clicks')
as select
    message.`item` as `item`,
    message.`_offset` as `_offset`,
    `partition` as `_partition`,
    `timestamp` as `_timestamp`
from (
    select
        *,
        from_json(
            cast(`value` as string),
            '`item` STRING, `_offset` INT',
            map('mode', 'PERMISSIVE')
        ) as message
    from `penstock_records`.`shop__clicks`
)"""
    )
    statement = create_records(made, ["kafka.bootstrap.servers"])
    assert statement.startswith("create table `penstock_records`.`shop__clicks` using kafka\noptions (\n")
    assert f"'kafka.bootstrap.servers' '${{file:{PROPERTIES}:{key('shop.clicks', 'bootstrap.servers')}}}'" in statement


def test_the_statements_hold_neither_address_nor_credentials(tmp_path: Path) -> None:
    made = source(
        "{topic: clicks, bootstrap.servers: 'kafka.example:9092', security.protocol: SASL_PLAINTEXT, "
        "sasl.mechanisms: PLAIN, sasl.username: reader, sasl.password: {env_var: SECRET_OF_SHOP}}",
        column("item", "string"),
        project=tmp_path,
    )
    text = create_records(made, ["kafka.bootstrap.servers", "kafka.sasl.jaas.config"]) + create_view(made)
    assert [word for word in ("kafka.example", "reader", "SECRET_OF_SHOP", str(tmp_path)) if word in text] == []


@pytest.mark.parametrize(
    ("stream", "options"),
    [
        ("{topic: clicks}", {"subscribe": "clicks"}),
        ("{topic_pattern: 'clicks_.*'}", {"subscribePattern": "clicks_.*"}),
        ("{topic: clicks, partitions: [2, 0]}", {"assign": '{"clicks": [0, 2]}'}),
    ],
)
def test_what_is_read_is_what_the_source_says(stream: str, options: dict[str, str], tmp_path: Path) -> None:
    found = reader_options(source(stream, column("a", "int"), project=tmp_path), [])
    assert options.items() <= found.items()
    assert (found["startingOffsets"], found["endingOffsets"]) == ("earliest", "latest")
    assert "includeHeaders" not in found


def test_headers_are_read_when_a_column_needs_them(tmp_path: Path) -> None:
    made = source("{topic: clicks}", column("a", "string", **{"from": "header(a)"}), project=tmp_path)
    assert reader_options(made, [])["includeHeaders"] == "true"


def test_a_source_is_the_same_wherever_streams_start_in_it(tmp_path: Path) -> None:
    first = source("{topic: clicks}", column("a", "int"), project=tmp_path)
    later = source("{topic: clicks, start: latest}", column("a", "int"), project=tmp_path)
    other = source("{topic: clicks}", column("a", "bigint"), project=tmp_path)
    assert fingerprint(first) == fingerprint(later)
    assert fingerprint(first) != fingerprint(other)


def test_a_column_of_the_source_comes_before_the_place_in_the_topic(tmp_path: Path) -> None:
    made = source("{topic: clicks}", column("_Offset", "int"), project=tmp_path)
    assert [each.name for each in position_columns(made)] == ["_partition", "_timestamp"]


# -- where the properties are -----------------------------------------------------------------------------------------
def test_properties_are_replaced_as_a_whole_and_leave_nothing_on_the_disk(tmp_path: Path) -> None:
    file = PropertiesFile(tmp_path / "kafka.properties")
    file.write({"a": "first"})
    with (tmp_path / "kafka.properties").open() as reader:
        file.write({"a": 'pa"ss\\word = é😀', "b": "line\nline"})
        assert reader.read() == "a=first\n"  # whoever has begun to read goes on with what he has
    content = (tmp_path / "kafka.properties").read_text()
    assert content == 'a=pa"ss\\\\word\\ \\=\\ \\u00e9\\ud83d\\ude00\nb=line\\nline\n'
    assert stat.S_ISLNK(os.lstat(tmp_path / "kafka.properties").st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["kafka.properties"]
    file.remove()
    assert list(tmp_path.iterdir()) == []
