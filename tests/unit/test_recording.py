"""Fixtures, masks and times of recordings."""

from __future__ import annotations

import gzip
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from penstock.compiler.spec import Column, KafkaInput
from penstock.engine.topic_files import Record
from penstock.errors import PenstockError
from penstock.registry.client import Registered
from penstock.testing import fixtures
from penstock.testing.fixtures import Recorded
from penstock.testing.masking import mask
from penstock.testing.recording import moment, schema_id

COLUMNS = (
    Column(name="id", type="INT", origin="value.id"),
    Column(name="email", type="STRING", origin="value.user.email"),
    Column(name="card", type="BIGINT", origin="value.card"),
    Column(name="tags", type="ARRAY<STRING>", origin="value.tags"),
    Column(name="who", type="STRING", origin="key"),
    Column(name="trace", type="STRING", origin="header(trace)"),
    Column(name="at", type="BIGINT", origin="offset"),
)
SOURCE = KafkaInput(view="v", relation="shop.clicks", topic="clicks", columns=COLUMNS)


def record(value: Any, key: bytes | None = b"ann") -> Record:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Record("clicks", 1, 7, 1000, key, content, (("trace", b"t-1"), ("other", b"o")))


def test_a_fixture_is_read_as_it_was_written_and_is_the_same_file_each_time(tmp_path: Path) -> None:
    messages = (
        record(json.dumps({"id": 1, "text": "é\u2028"}, ensure_ascii=False).encode()),
        Record("clicks", 0, 8, 5, None, b"\x00\xff", (("h", None),)),
        Record("clicks2", 0, 9, 6, b"", None),
    )
    schema = Registered(3, "AVRO", '"string"', {}, "clicks-value", 2)
    recorded = Recorded("shop.clicks", "clicks", messages, {3: schema}, ("email",))
    file = tmp_path / "deep" / "f.jsonl.gz"
    size = fixtures.write(recorded, file)
    assert size == file.stat().st_size
    assert fixtures.read(file) == recorded
    before = file.read_bytes()
    fixtures.write(recorded, file)
    assert file.read_bytes() == before
    assert "é" in gzip.decompress(before).decode()  # text can be read and compared


@pytest.mark.parametrize("content", [b"", b"plain", gzip.compress(b"{}\n"), gzip.compress(b"[\n")])
def test_a_file_that_is_no_fixture_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "f.jsonl.gz"
    file.write_bytes(content)
    with pytest.raises(PenstockError, match="PEN-6010"):
        fixtures.read(file)
    with pytest.raises(PenstockError, match="PEN-6010 there is no file"):
        fixtures.read(tmp_path / "none")


def test_masked_values_are_unrecognisable_and_equal_where_they_were_equal() -> None:
    hide = mask(SOURCE, ["email", "who", "trace", "card", "tags"], b"salt")
    message = {"id": 1, "user": {"email": "ann@example.org"}, "card": 4111222233334444, "tags": ["vip", None]}
    one, two = hide(record(message)), hide(record(message | {"id": 2}))
    found, again = json.loads(one.value or b""), json.loads(two.value or b"")
    assert found["id"] == 1
    assert found["user"] == again["user"]
    assert found["user"]["email"].startswith("masked-")
    assert len(str(found["card"])) == 16
    assert found["card"] == again["card"] != message["card"]
    assert found["tags"][1] is None
    assert one.key == two.key
    assert (one.key or b"").startswith(b"masked-")
    assert dict(one.headers)["other"] == b"o"
    shown = b"".join([one.key or b"", one.value or b"", dict(one.headers)["trace"] or b""])
    assert not any(secret in shown for secret in (b"ann", b"4111222233334444", b"vip", b"t-1"))
    assert hide(record(message)) == one
    assert mask(SOURCE, ["who"], b"other salt")(record(message)).key != one.key


def test_a_message_that_cannot_be_read_is_masked_as_a_whole() -> None:
    hide = mask(SOURCE, ["email"], b"salt")
    for dirty in (b"ann@example.org is no JSON", b'"ann@example.org"', b"\xff\xfe"):
        assert (hide(record(dirty)).value or b"").startswith(b"masked-")
    assert hide(record({"id": 1})).value == record({"id": 1}).value
    assert hide(Record("clicks", 0, 0, 0)).value is None


@pytest.mark.parametrize(
    ("source", "column", "message"),
    [
        (SOURCE, "emial", "has no column 'emial'"),
        (SOURCE, "at", "is the message's offset"),
        (SOURCE.model_copy(update={"value_format": "csv"}), "id", "of the format csv"),
    ],
)
def test_what_cannot_be_masked_is_refused_before_anything_is_read(
    source: KafkaInput, column: str, message: str
) -> None:
    with pytest.raises(PenstockError, match=message) as problem:
        mask(source, [column], b"")
    assert problem.value.code == "PEN-6011"


def test_times_are_moments_or_lengths_before_now() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    assert moment(None, now) is None
    assert moment("10 minutes", now) == int(now.timestamp() * 1000) - 600_000
    assert moment("2026-01-01 11:00", now) == int(now.timestamp() * 1000) - 3_600_000
    with pytest.raises(PenstockError, match="PEN-5006 'soon' is no time"):
        moment("soon", now)


def test_the_schema_that_a_message_names() -> None:
    assert schema_id(b"\x00\x00\x00\x00\x07rest") == 7
    assert schema_id(b"{}") is None
    assert schema_id(None) is None
