"""The example of commercials in tests: ratings of brands' commercials, and the two results that are made of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from published_messages import Read, read_topic

AVRO = """{"type": "record", "name": "commercialrating", "fields": [
  {"name": "brand", "type": {"type": "string", "arg.properties": {"options": ["Acme", "Globex"]}}},
  {"name": "duration", "type": {"type": "int", "arg.properties": {"options": [30, 45, 60]}}},
  {"name": "rating", "type": {"type": "int", "arg.properties": {"range": {"min": 1, "max": 5}}}}]}"""
METRICS = """
select brand, count(*) as cnt, avg(duration) as duration_mean, avg(rating) as rating_mean
from shop.commercials
group by brand
"""
WINDOWED = """
select brand, window.start as window_start, count(*) as cnt
from shop.commercials
group by brand, window(sent_at, '5 seconds')
having count(*) > 3
"""
# Three commercials of a brand of their own: it is in no window of the result, whenever they are sent.
RARE = [{"brand": "Umbrella", "duration": 30, "rating": rating} for rating in (1, 2, 5)]


def source_file(topic: str, value: str) -> str:
    """The source of a topic of commercials, in JSON or Avro."""
    declared = {"brand": "string", "duration": "int", "rating": "int"} if value == "json" else {}
    columns = [f"{{name: {name}, data_type: {kind}}}" for name, kind in declared.items()]
    for name, kind, origin in (("sent_at", "timestamp", "timestamp"), ("part", "int", "partition"),
                               ("pos", "bigint", "offset")):  # fmt: skip
        columns.append(f"{{name: {name}, data_type: {kind}, config: {{meta: {{stream: {{from: {origin}}}}}}}}}")
    return f"""
sources:
  - name: shop
    tables:
      - name: commercials
        config:
          meta:
            stream:
              topic: {topic}
              value: {{format: {value}}}
              watermark: {{column: sent_at, delay: 10 minutes}}
        columns: [{", ".join(columns)}]
"""


def metrics(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What METRICS gives, by its key."""
    by_brand = defaultdict(list)
    for row in rows:
        by_brand[row["brand"]].append(row)
    return {
        brand: {
            "brand": brand, "cnt": len(each), "duration_mean": sum(row["duration"] for row in each) / len(each),
            "rating_mean": sum(row["rating"] for row in each) / len(each),
        }
        for brand, each in by_brand.items()
    }  # fmt: skip


def windowed(bootstrap: str, topic: str) -> dict[tuple[str, datetime], dict[str, Any]]:
    """What WINDOWED gives, by its key, for the messages of a topic with the brand as their key."""
    counts = Counter(
        (each.key.decode(), datetime.fromtimestamp(each.timestamp // 5000 * 5, timezone.utc))
        for each in read_topic(bootstrap, topic)
    )
    return {key: {"brand": key[0], "window_start": key[1], "cnt": n} for key, n in counts.items() if n > 3}


def read_avro(client: SchemaRegistryClient, bootstrap: str, topic: str) -> list[Read]:
    """A topic as a consumer of confluent-kafka's reads it, with the schemas that the registry has."""
    decoders = [_decoder(client, topic, part) for part in (MessageField.KEY, MessageField.VALUE)]
    return read_topic(bootstrap, topic, *decoders)


def _decoder(client: SchemaRegistryClient, topic: str, part: str) -> Callable[[bytes | None], Any]:
    """Keys that are records are hashable tuples."""
    read, context = AvroDeserializer(client), SerializationContext(topic, part)

    def decode(raw: bytes | None) -> Any:
        found = None if raw is None else read(raw, context)
        return tuple(found.values()) if part == MessageField.KEY and isinstance(found, dict) else found

    return decode
