"""Sources with a schema: settings, columns from the schema, and the lock file that pins it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from source_files import column, compiled, entries, read_all, table

from penstock.compiler.job import render_job
from penstock.control import locking
from penstock.control.locking import Locker, complete
from penstock.errors import PenstockError
from penstock.project.lockfile import FILE, Lock, LockedPart, LockedType, read_lock, render_lock, write_lock
from penstock.project.source import StreamSource
from penstock.registry.client import Registered

ORDER = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "id", "type": "long"},
    {"name": "Customer", "type": {"type": "record", "name": "Customer", "fields": [
        {"name": "name", "type": "string"}, {"name": "age", "type": "int"}]}},
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
]})  # fmt: skip
PROTO = """syntax = "proto3";
package shop;
message Order { int64 id = 1; string note = 2; }
message Refund { int64 order = 1; }
"""
INLINE = json.dumps(ORDER)


def avro(*columns: str, more: str = "", project: Path) -> StreamSource:
    text = table(f"{{topic: t, value: {{format: avro, schema: {INLINE}{more}}}}}", *columns)
    if not columns:
        text = text[: text.index("        columns:")]
    return read_all(text, project)[0]


def names_and_types(source: StreamSource) -> list[tuple[str, str, str]]:
    return [(each.name, each.type.ddl, each.origin) for each in source.columns]


def problem(text: str, project: Path) -> PenstockError:
    with pytest.raises(PenstockError) as found:
        read_all(text, project)
    return found.value


# -- columns ----------------------------------------------------------------------------------------------------------
def test_without_columns_the_schema_gives_them(tmp_path: Path) -> None:
    assert names_and_types(avro(project=tmp_path)) == [
        ("id", "BIGINT", "value.id"),
        ("Customer", "STRUCT<`name`: STRING, `age`: INT>", "value.Customer"),
        ("amount", "DECIMAL(9,2)", "value.amount"),
    ]


def test_declared_columns_come_first_and_the_rest_is_inferred(tmp_path: Path) -> None:
    found = avro(
        column("k", "string", **{"from": "key"}), "{name: amount, description: what it cost}",
        column("who", "string", **{"from": "value.customer.name"}), column("day", "date", expr="current_date()"),
        project=tmp_path,
    )  # fmt: skip
    assert names_and_types(found) == [
        ("k", "STRING", "key"), ("amount", "DECIMAL(9,2)", "value.amount"), ("who", "STRING", "value.Customer.name"),
        ("day", "DATE", "computed"), ("id", "BIGINT", "value.id"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["bigint", "string", "decimal(19,0)", "decimal(38,2)"])
def test_a_wider_type_may_be_declared(kind: str, tmp_path: Path) -> None:
    assert avro(column("id", kind), project=tmp_path).columns[0].read_as is not None


WRONG = [
    ("PEN-1254", [column("idd", "bigint")], "Did you mean 'id'?"),
    ("PEN-1254", [column("who", "string", **{"from": "value.Customer.nam"})], "Did you mean 'name'?"),
    ("PEN-1254", [column("who", "string", **{"from": "value.id.x"})], None),
    ("PEN-1255", [column("id", "int")], "'bigint'"),
    ("PEN-1255", [column("amount", "double")], "'decimal(9,2)'"),
    ("PEN-1255", [column("Customer", "struct<name: string>")], None),
    ("PEN-1208", [column("r", "array<int>", **{"from": "record"})], None),
]  # fmt: skip


@pytest.mark.parametrize(("code", "columns", "hint"), WRONG)
def test_a_column_that_does_not_fit_the_schema_is_told(
    code: str, columns: list[str], hint: str | None, tmp_path: Path
) -> None:
    found = problem(table(f"{{topic: t, value: {{format: avro, schema: {INLINE}}}}}", *columns), tmp_path)
    assert found.code == code
    assert found.at is not None
    assert found.at.line == 7
    assert hint is None or hint in found.next_step


def test_a_column_of_the_record_needs_a_schema(tmp_path: Path) -> None:
    assert problem(table("{topic: t}", column("r", "string", **{"from": "record"})), tmp_path).code == "PEN-1207"


# -- settings ---------------------------------------------------------------------------------------------------------
SETTINGS = [
    ("PEN-1250", "{format: avro, schema: '\"int\"', subject: x}", "'schema'"),
    ("PEN-1250", "{format: avro, framing: none}", "id"),
    ("PEN-1251", "{format: avro, schema_file: schemas/gone.avsc}", "gone.avsc"),
    ("PEN-1252", "{format: avro, schema: '{\"type\": \"rec\"}'}", "cannot be read"),
    ("PEN-1252", "{format: protobuf, schema: 'message A { string x }'}", "line 1"),
    ("PEN-1253", f"{{format: avro, schema: {INLINE}, record: shop.Ordr}}", "Did you mean 'shop.Order'?"),
    ("PEN-1253", f"{{format: protobuf, schema: {json.dumps(PROTO)}, message: Ordre}}", "Did you mean 'shop.Order'?"),
    ("PEN-1253", f"{{format: protobuf, schema: {json.dumps(PROTO)}}}", "shop.Order, shop.Refund"),
    ("PEN-1253", "{format: avro, schema: '\"int\"', record: X}", "simple type"),
    ("PEN-1256", "{format: avro}", "penstock lock"),
    ("PEN-1259", "{format: avro, schema: '\"null\"'}", "always null"),
    ("PEN-1201", "{format: avro, schemafile: x}", "Did you mean 'schema_file'?"),
    ("PEN-1202", "{format: avro, framing: confluence}", "confluent"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "value", "said"), SETTINGS)
def test_a_wrong_schema_setting_is_told(code: str, value: str, said: str, tmp_path: Path) -> None:
    found = problem(table(f"{{topic: t, value: {value}}}"), tmp_path)
    assert found.code == code
    assert said in str(found)
    assert found.at is not None
    assert found.at.line == 5


def test_a_pattern_of_topics_needs_a_subject(tmp_path: Path) -> None:
    assert problem(table("{topic_pattern: 't.*', value: {format: avro}}"), tmp_path).code == "PEN-1250"
    found = problem(table("{topic: t, value: {format: avro, subject: '{record}'}}"), tmp_path)
    assert (found.code, "value.record" in found.next_step) == ("PEN-1250", True)


def test_a_fault_in_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "a.proto").write_text('syntax = "proto3";\n\nmessage A { string x }\n')
    found = problem(table("{topic: t, value: {format: protobuf, schema_file: schemas/a.proto}}"), tmp_path)
    assert (found.code, str(found.at)) == ("PEN-1252", "schemas/a.proto:3")


def test_files_import_files_of_their_folder_and_those_above(tmp_path: Path) -> None:
    for place in ("schemas/v1", "schemas/common"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "schemas/common/money.proto").write_text('syntax = "proto3"; message Money { int64 cents = 1; }')
    (tmp_path / "schemas/v1/a.proto").write_text(
        'syntax = "proto3"; import "common/money.proto"; message A { Money m = 1; }'
    )
    text = table(
        "{topic: t, value: {format: protobuf, schema_file: schemas/v1/a.proto}}",
        column("k", "string", **{"from": "key"}),
    )
    assert names_and_types(read_all(text, tmp_path)[0])[1:] == [("m", "STRUCT<`cents`: BIGINT>", "value.m")]


def test_a_registry_password_is_a_reference(tmp_path: Path) -> None:
    text = table("{topic: t, 'schema.registry.url': 'http://r', 'schema.registry.basic.auth.user.info': 'u:hunter2'}")
    found = problem(text, tmp_path)
    assert found.code == "PEN-1218"
    assert "hunter2" not in str(found)


def test_a_password_in_the_registrys_address_is_refused(tmp_path: Path) -> None:
    found = problem(table("{topic: t, 'schema.registry.url': 'https://ada:hunter2@registry.example/x'}"), tmp_path)
    assert found.code == "PEN-1218"
    assert "hunter2" not in str(found)


# -- the lock file ----------------------------------------------------------------------------------------------------
class FakeRegistry:
    """Subjects with their versions."""

    subjects: dict[str, list[str]] = {}
    kind = "AVRO"
    asked = 0

    def __init__(self, url: str, options: Any) -> None:
        type(self).asked += 1

    def versions(self, subject: str) -> list[int]:
        return list(range(1, len(self.subjects[subject]) + 1))

    def version(self, subject: str, number: int) -> Registered:
        return Registered(number + 100, self.kind, self.subjects[subject][number - 1], {}, subject, number)

    def latest(self, subject: str) -> Registered:
        return self.version(subject, len(self.subjects[subject]))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> type[FakeRegistry]:
    class Own(FakeRegistry):
        subjects: dict[str, list[str]] = {"t-value": [ORDER]}

    monkeypatch.setattr(locking, "Registry", Own)
    return Own


URL = {"url": "http://registry.example"}
OF_REGISTRY = table("{topic: t, value: {format: avro}}", column("k", "string", **{"from": "key"}))


def test_a_registry_schema_is_pinned_once_and_then_read_without_the_registry(
    registry: type[FakeRegistry], tmp_path: Path
) -> None:
    sources = entries(OF_REGISTRY, tmp_path)
    (change,) = complete(sources, tmp_path, lambda: URL)
    assert (change.source, change.part, change.what) == ("shop.clicks", "value", "new")
    asked = registry.asked
    assert [each.name for each in read_all(OF_REGISTRY, tmp_path)[0].columns] == ["k", "id", "Customer", "amount"]
    assert complete(sources, tmp_path, lambda: URL) == ()
    assert registry.asked == asked
    content = yaml.safe_load((tmp_path / FILE).read_text())["sources"]["shop.clicks"]["value"]["types"][0]
    assert content["fingerprint"].startswith("sha256:")
    assert content["columns"]["id"] == "BIGINT"
    assert json.loads(content["schema"]) == json.loads(ORDER) | {"name": "shop.Order"} or "Order" in content["schema"]
    assert "registry.example" not in (tmp_path / FILE).read_text()


def test_what_is_pinned_stays_until_an_update_is_asked_for(registry: type[FakeRegistry], tmp_path: Path) -> None:
    sources = entries(OF_REGISTRY, tmp_path)
    complete(sources, tmp_path, lambda: URL)
    registry.subjects["t-value"].append(ORDER.replace('"long"', '"int"'))
    assert complete(sources, tmp_path, lambda: URL) == ()
    found = Locker(tmp_path, URL).locking(sources, update=True)
    assert [each.what for each in found.changes] == ["changed"]
    write_lock(tmp_path, found.after)
    assert read_all(OF_REGISTRY, tmp_path)[0].columns[1].type.ddl == "INT"


def test_another_number_for_the_same_schema_is_no_change(registry: type[FakeRegistry], tmp_path: Path) -> None:
    sources = entries(OF_REGISTRY, tmp_path)
    complete(sources, tmp_path, lambda: URL)
    registry.subjects["t-value"].append(json.dumps(json.loads(ORDER), indent=4))
    assert Locker(tmp_path, URL).locking(sources, update=True).changes == ()


def test_a_source_that_says_something_else_is_pinned_anew(registry: type[FakeRegistry], tmp_path: Path) -> None:
    complete(entries(OF_REGISTRY, tmp_path), tmp_path, lambda: URL)
    registry.subjects["other"] = [ORDER]
    text = OF_REGISTRY.replace("{format: avro}", "{format: avro, subject: other}")
    assert problem(text, tmp_path).code == "PEN-1256"
    assert [each.what for each in complete(entries(text, tmp_path), tmp_path, lambda: URL)] == ["changed"]
    assert read_all(text, tmp_path)[0].value_schema is not None


def test_a_source_that_is_gone_is_taken_out(registry: type[FakeRegistry], tmp_path: Path) -> None:
    complete(entries(OF_REGISTRY, tmp_path), tmp_path, lambda: URL)
    found = Locker(tmp_path, URL).locking([], update=False)
    assert [each.what for each in found.changes] == ["removed"]
    assert found.after.sources == {}


def test_the_latest_version_that_has_the_record_is_taken(registry: type[FakeRegistry], tmp_path: Path) -> None:
    other = '{"type": "record", "name": "Refund", "namespace": "shop", "fields": [{"name": "order", "type": "long"}]}'
    registry.subjects["t-value"] = [ORDER, ORDER.replace('"scale": 2', '"scale": 3'), other]
    text = OF_REGISTRY.replace("{format: avro}", "{format: avro, record: [Order, shop.Refund]}")
    complete(entries(text, tmp_path), tmp_path, lambda: URL)
    source = read_all(text, tmp_path)[0]
    assert [(each.name, each.type.ddl.count("STRUCT")) for each in source.columns[1:]] == [("Order", 2), ("Refund", 1)]
    assert "DECIMAL(9,3)" in source.columns[1].type.ddl


def test_a_subject_of_another_format_is_told(registry: type[FakeRegistry], tmp_path: Path) -> None:
    registry.kind = "PROTOBUF"
    with pytest.raises(PenstockError) as found:
        complete(entries(OF_REGISTRY, tmp_path), tmp_path, lambda: URL)
    assert (found.value.code, str(found.value.at)) == ("PEN-1250", "sources/shop.yml:5")


def test_a_lock_survives_writing_and_reading(tmp_path: Path) -> None:
    one = LockedType(name="a.B", subject="s", version=1, id=2, fingerprint="sha256:x", columns={"a": "INT"},
                     left_out={"b": "it contains itself"}, schema="line one\n  line: 'two'\n\ttab", descriptor="QUJD" * 99)  # fmt: skip  # noqa: E501
    lock = Lock(sources={"shop.b": {"value": LockedPart(format="protobuf", types=(one,))}})
    assert write_lock(tmp_path, lock)
    assert not write_lock(tmp_path, lock)
    assert read_lock(tmp_path) == lock
    assert max(map(len, render_lock(lock).splitlines())) <= 120


@pytest.mark.parametrize(("text", "line"), [("a: [", 2), ("sources: 5", None), ("version: 99", None)])
def test_a_damaged_lock_file_is_told(text: str, line: int | None, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(PenstockError) as found:
        read_lock(tmp_path)
    assert found.value.code == "PEN-1258"
    assert found.value.at is not None
    assert found.value.at.file == FILE


# -- the compiled stream ----------------------------------------------------------------------------------------------
def test_a_job_decodes_the_columns_that_its_model_uses(tmp_path: Path) -> None:
    text = table(f"{{topic: t, value: {{format: avro, schema: {INLINE}}}}}", column("k", "string", **{"from": "key"}))
    spec = compiled(text, tmp_path, sql="select id from shop.clicks")
    job = render_job(spec)
    assert 'runtime.decoded(spark, records, "shop.clicks", SHOP__CLICKS__MESSAGES)' in job
    assert "message.`id` as `id`" in job
    assert "message is not null" in job
    types = next(line for line in job.splitlines() if "types=" in line or '"shop.Order":' in line)
    assert '"name":"id"' in types
    assert "amount" not in types
    compile(job, "job.py", "exec")


def test_a_field_that_no_column_takes_does_not_change_the_stream(registry: type[FakeRegistry], tmp_path: Path) -> None:
    text = OF_REGISTRY.replace("{format: avro}", "{format: avro, subject: small}")
    small = json.loads(ORDER)
    small["fields"] = small["fields"][:1]
    registry.subjects["small"] = [json.dumps(small)]
    complete(entries(text, tmp_path), tmp_path, lambda: URL)
    before = compiled(text, tmp_path, sql="select id from shop.clicks")
    small["doc"] = "a comment"
    registry.subjects["small"].append(json.dumps(small))
    write_lock(tmp_path, Locker(tmp_path, URL).locking(entries(text, tmp_path), update=True).after)
    assert compiled(text, tmp_path, sql="select id from shop.clicks").hash == before.hash
