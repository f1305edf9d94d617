"""A source of the manifest becomes a typed stream source; each mistake is an error with its code, file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from source_files import FILE, manifest_entry, read_all

from penstock.errors import PenstockError
from penstock.project.source import StreamSource, read_source

GOOD = """\
version: 2
sources:
  - name: shop
    tables:
      - name: clicks
        config:
          meta:
            stream:
              type: kafka
              topic: clicks
              value: {format: json}
              watermark: {column: ts, delay: 10 minutes}
        columns:
          - name: user_id
            data_type: string
            config: {meta: {stream: {from: key}}}
          - name: item_id
            data_type: string
          - name: ts
            data_type: timestamp
"""


def read(text: str, tmp_path: Path) -> StreamSource:
    return read_all(text, tmp_path)[0]


def test_a_source_is_read(tmp_path: Path) -> None:
    source = read(GOOD, tmp_path)
    assert (source.relation, source.topic, source.start, source.value.format) == (
        "shop.clicks", "clicks", "earliest", "json",
    )  # fmt: skip
    assert [(column.name, column.type.ddl, column.origin) for column in source.columns] == [
        ("user_id", "STRING", "key"),
        ("item_id", "STRING", "value.item_id"),
        ("ts", "TIMESTAMP", "value.ts"),
    ]
    assert source.watermark is not None
    assert source.watermark.delay == "10 minutes"


def test_settings_of_the_source_are_defaults_of_its_tables(tmp_path: Path) -> None:
    above = "  - name: shop\n    config: {meta: {stream: {start: latest, bootstrap.servers: 'b:1'}}}\n"
    source = read(GOOD.replace("  - name: shop\n", above), tmp_path)
    assert (source.start, source.bootstrap, source.topic) == ("latest", "b:1", "clicks")


def test_settings_below_plain_meta_are_read_too(tmp_path: Path) -> None:
    text = GOOD.replace("        config:\n          meta:\n", "        meta:\n").replace("config: {meta:", "{meta:")
    text = text.replace("{meta: {stream: {from: key}}}}", "meta: {stream: {from: key}}").replace(
        "            {meta: {stream: {from: key}}}", "            meta: {stream: {from: key}}"
    )
    assert read(text, tmp_path).columns[0].origin == "key"


def test_options_of_kafka_pass_through_as_text(tmp_path: Path) -> None:
    text = GOOD.replace("topic: clicks", "topic: clicks\n              kafka.b: true\n              kafka.a: 5")
    assert read(text, tmp_path).options == (("kafka.a", "5"), ("kafka.b", "true"))


def test_a_text_value_fills_the_column(tmp_path: Path) -> None:
    text = GOOD.replace("{format: json}", "{format: string}").replace("watermark:", "# watermark:")
    assert read(text, tmp_path).columns[1].origin == "value"


@pytest.mark.parametrize(
    "origin",
    [
        "key",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "value",
        "value.a",
        "value.a.b.c",
        "header(trace)",
        "header( x )",
    ],
)
def test_an_origin_is_known(origin: str, tmp_path: Path) -> None:
    column = read(GOOD.replace("from: key", f"from: '{origin}'"), tmp_path).columns[0]
    assert column.origin == origin.replace("( x )", "(x)")


# old text, new text, code, line, part of the whole message
MISTAKES = [
    pytest.param("topic: clicks", "topik: clicks", "1201", 10, "Did you mean 'topic'?", id="misspelt key"),
    pytest.param("{format: json}", "{fromat: json}", "1201", 11, "Did you mean 'format'?", id="misspelt key of value"),
    pytest.param("delay: 10", "delai: 10", "1201", 12, "Did you mean 'delay'?", id="misspelt key of watermark"),
    pytest.param("{from: key}", "{form: key}", "1201", 16, "Did you mean 'from'?", id="misspelt key of a column"),
    pytest.param("topic: clicks", "kafka.group.id: x", "1222", 10, "not for you to set", id="reserved option"),
    pytest.param("topic: clicks", "topic: [clicks]", "1202", 10, "must be a text", id="a list as topic"),
    pytest.param("topic: clicks", "start: earliest", "1220", 8, "has no topic", id="no topic"),
    pytest.param("type: kafka", "start: erliest", "1221", 9, "Did you mean 'earliest'?", id="unknown start"),
    pytest.param("{format: json}", "json", "1202", 11, "{format: json}", id="a format that is no mapping"),
    pytest.param("{format: json}", "{format: jsonn}", "1203", 11, "Did you mean 'json'?", id="unknown format"),
    pytest.param("        columns:", "        other:", "1204", 5, "has no columns", id="no columns"),
    pytest.param("            data_type: string\n            config", "            config", "1205", 14, "'user_id'",
                 id="no type"),
    pytest.param("name: item_id", "name: USER_ID", "1206", 17, "'USER_ID'", id="twice in another case"),
    pytest.param("name: item_id", "name: user_id", "1206", 17, "'user_id'", id="twice, folded by dbt"),
    pytest.param("from: key", "from: kye", "1207", 16, "Did you mean 'key'?", id="unknown origin"),
    pytest.param("from: key", "from: header()", "1212", 16, "header() without a name", id="header without a name"),
    pytest.param("from: key", "from: header", "1212", 16, "header() without a name", id="header without brackets"),
    pytest.param("from: key", "from: value.", "1207", 16, "'value.'", id="an empty path"),
    pytest.param("from: key", "from: value.item_id.x", "1213", 17, "two ways", id="part of another path"),
    pytest.param("data_type: timestamp", "data_type: timestmp", "1208", 20, "Did you mean 'timestamp'?", id="no type"),
    pytest.param("from: key", "from: headers", "1208", 15, "map<string, string>", id="all headers as text"),
    pytest.param("data_type: string\n            config", "data_type: array<int>\n            config", "1208", 15,
                 "the whole key", id="a key that is an array"),
    pytest.param("column: ts", "column: tss", "1209", 12, "Did you mean 'ts'?", id="watermark on nothing"),
    pytest.param("column: ts", "column: item_id", "1209", 12, "is string, not a timestamp", id="watermark on text"),
    pytest.param("10 minutes", "soon", "1209", 12, "'soon'", id="a bad delay"),
    pytest.param(", delay: 10 minutes", "", "1209", 12, "has no delay", id="no delay"),
    pytest.param("{column: ts, delay: 10 minutes}", "ts", "1209", 12, "must be a mapping", id="watermark as text"),
    pytest.param("type: kafka", "type: kafak", "1210", 9, "Did you mean 'kafka'?", id="unknown type"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "code", "line", "said"), MISTAKES)
def test_a_mistake_has_its_code_and_line(old: str, new: str, code: str, line: int, said: str, tmp_path: Path) -> None:
    assert GOOD.count(old) >= 1
    with pytest.raises(PenstockError) as caught:
        read(GOOD.replace(old, new, 1), tmp_path)
    assert caught.value.code == f"PEN-{code}"
    assert str(caught.value.at) == f"{FILE}:{line}"
    assert said in str(caught.value)


def test_a_mistake_in_a_default_has_the_line_of_the_source(tmp_path: Path) -> None:
    above = "  - name: shop\n    config: {meta: {stream: {strt: latest}}}\n"
    with pytest.raises(PenstockError) as caught:
        read(GOOD.replace("  - name: shop\n", above), tmp_path)
    assert str(caught.value.at) == f"{FILE}:4"


def test_a_file_that_yaml_cannot_read_only_costs_the_line(tmp_path: Path) -> None:
    entry = yaml.safe_load(GOOD)["sources"][0]
    (tmp_path / "sources").mkdir()
    (tmp_path / FILE).write_text("{% if x %}\n: : {{\n")
    broken = manifest_entry(entry, entry["tables"][0])
    broken["config"]["meta"]["stream"]["topik"] = "x"
    with pytest.raises(PenstockError) as caught:
        read_source(broken, tmp_path)
    assert str(caught.value.at) == FILE
