"""Decoding alone: rows per second of each format beside the plain `from_json` and `from_avro` one would write by hand.

Rules
- One Spark application, one set of records on disk for each format, with the columns of Spark's Kafka reader. Nothing
  is written: the rows go into Spark's `noop` sink.
- Contenders take turns; a figure is the median of the rounds, and the ratio is what counts.
- Ours is what a stream does: messages with a schema are decoded, records are judged and counted, and the rows selected.
  By hand there is no judgement: what cannot be read is null, or ends the job.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.report import median, note, table

KINDS = ("string", "long", "double", "int", "boolean")
SPARK = {"string": "STRING", "long": "BIGINT", "double": "DOUBLE", "int": "INT", "boolean": "BOOLEAN"}
PROTO = {"string": "string", "long": "int64", "double": "double", "int": "int32", "boolean": "bool"}
WIDTHS = (3, 30)
SUBJECT, URL = "bench-value", "http://127.0.0.1:1"  # nobody is asked: the schemas are in the cache


def run(*, quick: bool, rounds: int | None, rows: int | None) -> None:
    """Print the rates of all contenders and their ratios."""
    rounds, rows = rounds or (3 if quick else 7), rows or (200_000 if quick else 500_000)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-formats-") as project:
        for line in _child(Path(project), rounds, rows):
            found.setdefault(line["name"], []).append(rows / line["seconds"])
    rates = {name: median(values) for name, values in found.items()}
    pairs = [(name, name.replace("penstock", "by hand")) for name in rates if name.startswith("penstock")]
    lines = [
        [ours.removeprefix("penstock "), f"{rates[ours]:,.0f}", f"{rates[theirs]:,.0f}" if theirs in rates else "-",
         f"{rates[ours] / rates[theirs]:.2f}x" if theirs in rates else "-"]
        for ours, theirs in pairs
    ]  # fmt: skip
    table(f"Decoding, rows/s, {rows:,} rows, median of {rounds}", ["what", "penstock", "by hand", "ratio"], lines)
    more = []
    for width in WIDTHS:
        json_rate = rates[f"penstock json, {width} columns"]
        more.append([f"protobuf beside json, {width} columns",
                     f"{rates[f'penstock protobuf, {width} columns'] / json_rate:.2f}x", "1.00x"])  # fmt: skip
        one, three = (rates[f"penstock avro{which}, {width} columns"] for which in ("", " of three ids"))
        more.append([f"avro of three ids beside one, {width} columns", f"{three / one:.2f}x", "0.80x"])
    table("Penstock beside itself", ["what", "ratio", "aim"], more)


def _child(project: Path, rounds: int, rows: int) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "bench.formats", str(project), str(rounds), str(rows)]
    log = project / "formats.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=Path(__file__).parent.parent
        ) as process,
    ):
        assert process.stdout is not None
        for text in process.stdout:
            if text.startswith("{"):
                line = json.loads(text)
                note(f"{line['name']}: {line['seconds']:.2f} s")
                yield line
    if process.returncode:
        raise RuntimeError(log.read_text()[-2000:])


# -- the application ---------------------------------------------------------------------------------------------------
def fields(width: int) -> list[tuple[str, str]]:
    return [(f"c{number}", KINDS[number % len(KINDS)]) for number in range(width)]


def value(width: int, seed: int) -> dict[str, Any]:
    made = {"string": f"some text {seed}", "long": seed * 1_000_003, "double": seed / 7, "int": seed, "boolean": True}
    return {name: made[kind] for name, kind in fields(width)}


def avro_schema(width: int, version: int = 0) -> str:
    own = [{"name": name, "type": kind} for name, kind in fields(width)]
    extra = [{"name": f"v{number}", "type": "int", "default": 0} for number in range(version)]
    return json.dumps({"type": "record", "name": "Row", "fields": [*own, *extra]})


def proto(width: int) -> str:
    lines = "".join(f"  {PROTO[kind]} {name} = {at + 1};\n" for at, (name, kind) in enumerate(fields(width)))
    return f'syntax = "proto3";\nmessage Row {{\n{lines}}}\n'


class Application:
    """The records of each format, and the queries that decode them."""

    def __init__(self, project: Path, rows: int) -> None:
        from penstock.engine import session
        from penstock.paths import ProjectPaths
        from penstock.project.profile import RuntimeSettings, SchemaRegistrySettings

        self.paths, self.rows, self.views = ProjectPaths(project), rows, 0
        registry = SchemaRegistrySettings(options={"url": URL})
        settings = RuntimeSettings(target="bench", schema="bench", schema_registry=registry)
        self.spark = session.create(self.paths, settings, port=session.free_port(), token="bench")

    def queries(self) -> dict[str, Callable[[], Any]]:
        found: dict[str, Callable[[], Any]] = {}
        for width in WIDTHS:
            found |= self._json(width) | self._avro(width) | self._protobuf(width)
        return found

    def _records(self, name: str, messages: list[bytes]) -> Any:
        """Records on disk, as the Kafka reader gives them; the messages come again and again."""
        from pyspark.sql import functions as F

        place = str(self.paths.project / name)
        values = self.spark.createDataFrame(
            [(n, bytearray(each)) for n, each in enumerate(messages)], "n INT, value BINARY"
        )
        many = self.spark.range(self.rows, numPartitions=2).withColumn("n", (F.col("id") % len(messages)).cast("int"))
        records = many.join(F.broadcast(values), "n").selectExpr(
            "cast(null as binary) as key", "value", "'t' as topic", "0 as partition", "id as offset",
            "current_timestamp() as timestamp",
        )  # fmt: skip
        records.coalesce(2).write.parquet(place)
        return self.spark.read.parquet(place)

    def _source(self, width: int, **more: Any) -> Any:
        from penstock.compiler.spec import Column, KafkaInput

        with_schema = more.get("value_schema") is not None
        columns = tuple(
            Column(name=name, type=SPARK[kind], origin=f"value.{name}", read_as=SPARK[kind] if with_schema else None)
            for name, kind in fields(width)
        )
        return KafkaInput(view="rows", relation="bench.rows", topic="t", columns=columns, **more)

    def _ours(self, records: Any, source: Any, wanted: list[str] | None = None) -> Callable[[], Any]:
        from penstock.compiler.decoding import columns_decoded, judged, rows
        from penstock.compiler.messages import messages
        from penstock.engine import runtime

        self.views += 1
        view = f"records_{self.views}"
        made = messages(source, columns_decoded(source, wanted))
        runtime.decoded(self.spark, records, source.relation, made).createOrReplaceTempView(view)
        counted = runtime.counted(self.spark, source.relation, judged(source, view, wanted=wanted))
        counted.createOrReplaceTempView(f"judged_{view}")
        sql = rows(source, f"judged_{view}", wanted=wanted)
        return lambda: self.spark.sql(sql)

    def _json(self, width: int) -> dict[str, Callable[[], Any]]:
        from pyspark.sql import functions as F

        records = self._records(f"json{width}", [json.dumps(value(width, n)).encode() for n in range(200)])
        ddl = ", ".join(f"{name} {SPARK[kind]}" for name, kind in fields(width))
        by_hand = records.select(F.from_json(F.col("value").cast("string"), ddl).alias("m")).select("m.*")
        found = {
            f"penstock json, {width} columns": self._ours(records, self._source(width)),
            f"by hand json, {width} columns": lambda: by_hand,
        }
        if width == max(WIDTHS):
            three = [name for name, _ in fields(3)]
            found["penstock json, 3 of 30 columns"] = self._ours(records, self._source(width), three)
            found["by hand json, 3 of 30 columns"] = lambda: by_hand.select(*three)
        return found

    def _avro(self, width: int) -> dict[str, Callable[[], Any]]:
        from pyspark.sql import functions as F
        from pyspark.sql.avro.functions import from_avro

        from penstock.compiler.spec import MessageType, Schema
        from penstock.registry.address import access
        from penstock.registry.cache import SchemaCache
        from penstock.registry.client import Registered

        subject = f"{SUBJECT}{width}"
        cache = SchemaCache(self.paths, access({}, {"url": URL}, self.paths).name)
        ids = {version: 100 * width + version for version in (1, 2, 3)}
        for version, schema_id in ids.items():
            cache.keep(Registered(schema_id, "AVRO", avro_schema(width, version - 1), {}, subject, version))
        cache.keep_versions(subject, ids)
        schema = Schema(subjects=(subject,), types=(MessageType(name="Row", content=avro_schema(width)),))
        source = self._source(width, value_format="avro", value_schema=schema)
        one = self._records(f"avro{width}", [_avro_message(width, 0, ids[1], n) for n in range(200)])
        three = self._records(f"avros{width}", [_avro_message(width, n % 3, ids[1 + n % 3], n) for n in range(201)])
        by_hand = one.select(from_avro(F.expr("substring(value, 6)"), avro_schema(width)).alias("m")).select("m.*")
        found = {
            f"penstock avro, {width} columns": self._ours(one, source),
            f"by hand avro, {width} columns": lambda: by_hand,
            f"penstock avro of three ids, {width} columns": self._ours(three, source),
        }
        if width == max(WIDTHS):
            names = [name for name, _ in fields(3)]
            found["penstock avro, 3 of 30 columns"] = self._ours(one, source, names)
            found["by hand avro, 3 of 30 columns"] = lambda: by_hand.select(*names)
        return found

    def _protobuf(self, width: int) -> dict[str, Callable[[], Any]]:
        from google.protobuf.message_factory import GetMessageClass

        from penstock.compiler.spec import MessageType, Schema
        from penstock.project.protobuf import ProtobufSchema
        from penstock.project.protoc import compiled

        content = compiled(proto(width), "row.proto", {}).encoded
        message = GetMessageClass(ProtobufSchema.read(content).message("Row"))
        records = self._records(f"proto{width}", [message(**value(width, n)).SerializeToString() for n in range(200)])
        schema = Schema(framed=False, types=(MessageType(name="Row", content=content),))
        source = self._source(width, value_format="protobuf", value_schema=schema)
        found = {f"penstock protobuf, {width} columns": self._ours(records, source)}
        if width == max(WIDTHS):
            names = [name for name, _ in fields(3)]
            found["penstock protobuf, 3 of 30 columns"] = self._ours(records, source, names)
        return found


def _avro_message(width: int, version: int, schema_id: int, seed: int) -> bytes:
    import fastavro

    out = io.BytesIO()
    written = value(width, seed) | {f"v{number}": number for number in range(version)}
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(avro_schema(width, version))), written)
    return b"\x00" + schema_id.to_bytes(4, "big") + out.getvalue()


def main() -> None:
    project, rounds, rows = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    os.chdir(project)
    application = Application(project, rows)
    queries = application.queries()
    for number in range(-2, rounds):  # the first are for warming up
        for name, query in queries.items():
            began = time.monotonic()
            query().write.format("noop").mode("overwrite").save()
            if number >= 0:
                print(json.dumps({"name": name, "seconds": time.monotonic() - began}), flush=True)
    application.spark.stop()


if __name__ == "__main__":
    main()
