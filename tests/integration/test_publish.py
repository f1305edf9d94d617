"""Dynamic tables that are published to Kafka: read back by confluent-kafka's own deserializers, committed alone."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import commercials
import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from model_files import Project
from published_messages import latest, read_topic
from pyspark.sql.types import LongType, StringType, StructField, StructType
from schema_messages import avro_serializer, python_of
from source_files import compiled, entries

from penstock.compiler.spec import Publish
from penstock.control.locking import complete
from penstock.control.streams import start_stream, stop_stream
from penstock.dev.registry import RegistryService
from penstock.engine.identity import application
from penstock.engine.publish import Publisher
from penstock.engine.snapshot import Broker
from penstock.errors import PenstockError
from penstock.errors.catalogue import PUBLISH_FORGOTTEN, PUBLISH_SCHEMA, REAL_TIME_SLOTS
from penstock.kafka.admin import client_config
from penstock.paths import ProjectPaths
from penstock.store import StreamState

if TYPE_CHECKING:
    from tests.conftest import MakeSpec, MakeTopic, Platform, Produce
else:
    MakeSpec = MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def client(registry: RegistryService) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


@pytest.fixture
def project(tmp_path: Path, registry: RegistryService) -> Path:
    paths = ProjectPaths(tmp_path)
    paths.registry.mkdir(parents=True)
    (paths.registry / "registry.json").write_text(json.dumps({"url": registry.url}))
    return tmp_path


@pytest.mark.parametrize("form", ["json", "avro"])
def test_the_commercials_example_with_its_results_as_registered_avro(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce, client: SchemaRegistryClient,
    project: Path, form: str,
) -> None:  # fmt: skip
    # Given: the two queries of the example over a topic of commercials, each published as Avro with its key.
    source = topic(name=f"commercials_{form}")
    rows = [{"brand": ["Acme", "Globex", "Initech"][n % 7 % 3], "duration": 30 + 15 * (n % 3), "rating": 1 + n % 5}
            for n in range(60)]  # fmt: skip
    rows[:0] = commercials.RARE
    encode = avro_serializer(client, source, commercials.AVRO) if form == "avro" else json.dumps
    produce(source, [(row["brand"], encode(row)) for row in rows[:23]])
    text = commercials.source_file(source, form)
    complete(entries(text, project), project, dict)
    to = {name: f"{name}-{source}" for name in ("metrics", "windowed")}
    for name, sql, table in (("metrics", commercials.METRICS, True), ("windowed", commercials.WINDOWED, False)):
        publish = {"topic": to[name], "value": {"format": "avro"}, "table": table}
        platform.deploy(compiled(text, project, name=f"{schema}.{name}", sql=sql, publish=publish))
        platform.state(f"{schema}.{name}", StreamState.RUNNING)
    for begin in (23, 43):
        produce(source, [(row["brand"], encode(row)) for row in rows[begin : begin + 20]])

    # Then: what a reader of the topics ends with is what the messages say, and the table says the same.
    def seen(name: str) -> dict[Any, Any]:
        return latest(commercials.read_avro(client, platform.bootstrap, to[name]))

    metrics, windowed = commercials.metrics(rows), commercials.windowed(platform.bootstrap, source)

    def now(name: str) -> Any:
        return seen(name), platform.store.actual(f"{schema}.{name}")

    platform.until(lambda: seen("metrics") == metrics, "the metrics", 90, lambda: now("metrics"))
    platform.until(lambda: seen("windowed") == windowed, "the windows", 90, lambda: (now("windowed"), windowed))
    assert windowed
    assert {each["brand"] for each in commercials.RARE} <= metrics.keys() - {brand for brand, _ in windowed}
    table = platform.sql(f"select brand, cnt, duration_mean, rating_mean from {schema}.metrics")
    assert {row[0]: row for row in table} == {each["brand"]: tuple(each.values()) for each in seen("metrics").values()}

    # And: schemas are registered by topic, and the model without a table has none.
    for part in ("key", "value"):
        assert client.get_latest_version(f"{to['metrics']}-{part}").schema.schema_type == "AVRO"
    assert json.loads(client.get_latest_version(f"{to['metrics']}-key").schema.schema_str) == "string"
    assert not platform.sql(f"show tables in {schema} like 'windowed'")
    if form == "json":
        _a_schema_that_does_not_fit(platform, client, text, project, f"{schema}.metrics", to["metrics"])


def _a_schema_that_does_not_fit(
    platform: Platform, client: SchemaRegistryClient, text: str, project: Path, name: str, topic: str
) -> None:
    """The registry says no before anything is changed."""
    client.set_compatibility(f"{topic}-value", "BACKWARD")
    before = platform.store.desired(name).generation
    sql = commercials.METRICS.replace("count(*)", "cast(count(*) as string)")
    changed = compiled(text, project, name=name, sql=sql, publish={"topic": topic, "value": "avro"})
    with pytest.raises(PenstockError) as refused:
        platform.deploy(changed, full_refresh=True)
    assert refused.value.kind is PUBLISH_SCHEMA
    assert f"{topic}-value" in refused.value.message
    assert platform.store.desired(name).generation == before
    assert platform.store.actual(name).state is StreamState.RUNNING


NESTED = """
select k, v, cast(v as decimal(10,2)) as price, at, named_struct('k', k, 'vs', array(v, v + 1)) as nested,
  map('one', v) as by_name, cast(at as date) as day, cast(null as string) as nothing, cast(k as binary) as raw
from {events}
"""


def test_rows_of_every_kind_reach_their_topics_whoever_writes_them(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce, client: SchemaRegistryClient, tmp_path: Path
) -> None:
    # Given: appended rows as Protobuf and JSON, and rows that come and go, small batches and large ones.
    project = Project(schema)
    events = topic(2)
    project.source("events", events, {"k": "string", "v": "bigint", "at": "timestamp from timestamp"})
    to = {name: f"{schema}-{name}" for name in ("nested", "lines", "rare", "rare_by_spark")}
    project.model("nested", NESTED, small_batch_rows=0,
                  publish={"topic": to["nested"], "key": "k", "value": "protobuf", "table": False})  # fmt: skip
    project.model("lines", NESTED, publish={"topic": to["lines"], "delivery": "at_least_once", "partitions": 3})
    rare = "select k, count(*) as n from {events} group by k having count(*) < 3"
    for name, size in (("rare", 1000), ("rare_by_spark", 0)):
        project.model(name, rare, small_batch_rows=size, publish={"topic": to[name], "key_in_value": False})
    for spec in project.specs().values():
        platform.deploy(spec)
    sent = [(f"k{n % 4 if n < 12 else 9}", n) for n in range(13)]
    for begin in (0, 6):
        produce(events, [(k, {"k": k, "v": v}) for k, v in sent[begin : begin + 6]])
    produce(events, [(k, {"k": k, "v": v}) for k, v in sent[12:]])

    def until(name: str, look: Any, want: Any) -> None:
        platform.until(
            lambda: look() == want, f"the messages of {name}", 60,
            lambda: (look(), want, platform.store.actual(f"{schema}.{name}")),
        )  # fmt: skip

    # Then: the rows that came and went are the table's, and the keys that are gone have a tombstone.
    for name in ("rare", "rare_by_spark"):
        look = lambda name=name: latest(read_topic(platform.bootstrap, to[name], bytes.decode, _json))  # noqa: E731
        until(name, look, {"k9": {"n": 1}})
        assert platform.sql(f"select k, n from {schema}.{name}") == [("k9", 1)]
        all_of = read_topic(platform.bootstrap, to[name], bytes.decode, _json)
        assert {each.key for each in all_of if each.value is None} >= {"k0", "k1", "k2", "k3"}

    # And: appended rows are there as they were sent; JSON says all, Protobuf is read with the registered schema.
    read = lambda: sorted(each.value["v"] for each in read_topic(platform.bootstrap, to["lines"], value=_json))  # noqa: E731
    until("lines", read, [v for _, v in sent])
    line = next(each for each in read_topic(platform.bootstrap, to["lines"], value=_json) if each.value["v"] == 5)
    assert line.key is None
    at = line.value.pop("at")
    assert line.value == {
        "k": "k1", "v": 5, "price": 5.00, "nested": {"k": "k1", "vs": [5, 6]}, "by_name": {"one": 5},
        "day": at[:10], "nothing": None, "raw": "azE=",
    }  # fmt: skip
    assert at.endswith("Z")
    decode = [_in_protobuf(client, to["nested"], part, tmp_path) for part in (MessageField.KEY, MessageField.VALUE)]

    def rows() -> list[tuple[Any, Any]]:
        found = [(each.key, each.value) for each in read_topic(platform.bootstrap, to["nested"], *decode)]
        return sorted(found, key=lambda each: each[1].v)

    until("nested", lambda: [(key.k, each.k, each.v) for key, each in rows()], [(k, k, v) for k, v in sent])
    five = rows()[5][1]
    assert (Decimal(five.price), list(five.nested.vs), dict(five.by_name)) == (Decimal("5.00"), [5, 6], {"one": 5})
    assert (five.day, five.HasField("nothing"), five.raw) == (at[:10], False, b"k1")
    assert five.at.ToDatetime(timezone.utc) == datetime.fromisoformat(at.replace("Z", "+00:00"))
    partitions = AdminClient(client_config(platform.bootstrap)).list_topics(to["lines"], timeout=10)
    assert len(partitions.topics[to["lines"]].partitions) == 3


def test_keys_and_values_each_have_a_format_of_their_own(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce, client: SchemaRegistryClient, tmp_path: Path
) -> None:
    # Given: rows by every format of a key and of a value, with the key in the value and without.
    project = Project(schema)
    events = topic(1)
    project.source("events", events, {"k": "string", "v": "bigint", "at": "timestamp from timestamp"})
    own = "select nullif(k, 'nobody') as k, v from {events}"
    plain = "select k, v from {events}"
    models = {
        "json_json": (own, {"key": "k", "key_format": "json"}),
        "two_json": (own, {"key": ["v", "k"]}),
        "string_avro": (NESTED, {"key": "k", "key_format": "string", "value": "avro", "key_in_value": False}),
        "avro_json": (plain, {"key": "v", "key_format": "avro"}),
        "two_avro_json": (plain, {"key": ["k", "v"], "key_format": "avro", "key_in_value": True}),
        "protobuf_json": (plain, {"key": "k", "key_format": "protobuf", "key_in_value": False}),
        "json_protobuf": (plain, {"key": "v", "key_format": "json", "value": "protobuf", "key_in_value": False}),
        "by_group": ("select k, v % 2 as odd, count(*) as n from {events} group by 1, 2 having count(*) < 2", {}),
    }
    to = {name: f"{schema}-{name}" for name in models}
    for name, (sql, publish) in models.items():
        project.model(name, sql, publish={"topic": to[name], "table": name == "by_group", **publish})
    for spec in project.specs().values():
        platform.deploy(spec)
    sent = [('Zoë "x"', 1), ("nobody", 2), ("a", 3)]
    at = datetime(2026, 2, 3, 4, 5, 6, 789000, timezone.utc)
    produce(events, [(k, {"k": k, "v": v}) for k, v in sent], timestamp=int(at.timestamp() * 1000))
    zoe = sent[0][0]

    def decoder(form: str, name: str, part: str) -> Any:
        if form == "avro":
            avro, context = AvroDeserializer(client), SerializationContext(to[name], part)
            return lambda raw: avro(raw, context)
        if form == "protobuf":
            protobuf = _in_protobuf(client, to[name], part, tmp_path)
            return lambda raw: {field.name: value for field, value in protobuf(raw).ListFields()}
        return _json if form == "json" else bytes.decode

    def become(name: str, key: str, value: str, want: list[tuple[Any, Any]]) -> None:
        there = lambda: read_topic(platform.bootstrap, to[name])  # noqa: E731
        last = lambda: (there(), platform.store.actual(f"{schema}.{name}"))  # noqa: E731
        platform.until(lambda: len(there()) >= len(want), f"the messages of {name}", 60, last)
        decode = decoder(key, name, MessageField.KEY), decoder(value, name, MessageField.VALUE)
        found = [(each.key, each.value) for each in read_topic(platform.bootstrap, to[name], *decode)]
        assert sorted(found, key=lambda each: repr(each[0])) == sorted(want, key=lambda each: repr(each[0])), name

    # Then: a key in JSON is the value of its column, or an object in the order of the setting. It can be null.
    become("json_json", "text", "json", [
        ('"Zoë \\"x\\""', {"k": zoe, "v": 1}), ("null", {"k": None, "v": 2}), ('"a"', {"k": "a", "v": 3}),
    ])  # fmt: skip
    become("two_json", "text", "json", [
        ('{"v":1,"k":"Zoë \\"x\\""}', {"k": zoe, "v": 1}), ('{"v":2,"k":null}', {"k": None, "v": 2}),
        ('{"v":3,"k":"a"}', {"k": "a", "v": 3}),
    ])  # fmt: skip
    # And: Avro says every type, to whoever reads it with the schema that is registered; the key is not in the value.
    become("string_avro", "text", "avro", [
        (k, {
            "v": v, "price": Decimal(f"{v}.00"), "at": at, "nested": {"k": k, "vs": [v, v + 1]}, "by_name": {"one": v},
            "day": at.date(), "nothing": None, "raw": k.encode(),
        }) for k, v in sent
    ])  # fmt: skip
    # And: the format of the key is not that of the value.
    become("avro_json", "avro", "json", [(v, {"k": k, "v": v}) for k, v in sent])
    become("two_avro_json", "avro", "json", [({"k": k, "v": v}, {"k": k, "v": v}) for k, v in sent])
    become("protobuf_json", "protobuf", "json", [({"k": k}, {"v": v}) for k, v in sent])
    become("json_protobuf", "json", "protobuf", [(v, {"k": k}) for k, v in sent])
    # And: by several columns of a group, which is taken back by its key alone.
    row = lambda k, odd: ({"k": k, "odd": odd}, {"k": k, "odd": odd, "n": 1})  # noqa: E731
    groups = [row(zoe, 1), row("nobody", 0), row("a", 1)]
    become("by_group", "json", "json", groups)
    produce(events, [{"k": "a", "v": 5}])
    become("by_group", "json", "json", [*groups, ({"k": "a", "odd": 1}, None)])


def _in_protobuf(client: SchemaRegistryClient, topic: str, part: str, folder: Path) -> Any:
    """As a consumer reads it that made its classes of the schema that is registered."""
    registered = client.get_latest_version(f"{topic}-{part}").schema.schema_str
    module = python_of(registered, folder, f"{topic}_{part}".replace("-", "_"))
    (message,) = (each for each in vars(module).values() if isinstance(each, type))
    read, context = ProtobufDeserializer(message, {"use.deprecated.format": False}), SerializationContext(topic, part)
    return lambda raw: read(raw, context)


def test_many_rows_are_published_in_several_transactions_of_which_the_last_counts(
    broker: Any, topic: MakeTopic, tmp_path: Path
) -> None:
    name, columns = topic(1), StructType([StructField("k", StringType()), StructField("n", LongType())])

    def publisher() -> Publisher:
        made = Publisher(
            None, "shop.many", Publish(topic=name, key=("k",)), columns, Broker(broker.bootstrap, ()),  # type: ignore[arg-type]
            upsert=True, checkpoint=tmp_path, checkpoint_id="g1-x",
        )  # fmt: skip
        made.fence()
        return made

    def rows(*keys: str | None) -> list[pa.RecordBatch]:
        return [pa.record_batch({"k": [key], "n": [number]}) for number, key in enumerate(keys)]

    # A row that cannot be published comes to light in the third part: the batch is not in the topic.
    first = publisher()
    with pytest.raises(PenstockError, match="PEN-4041"):
        first.send_in_parts(rows("a", "b", "c", "d", None), 7, most=2)
    first.close()
    assert len(read_topic(broker.bootstrap, name)) == 4
    second = publisher()
    assert second.newest == -1
    assert second.send_in_parts(rows("a", "b", "c", "d", "e"), 7, most=2) == 5
    assert second.send_in_parts(rows("a"), 7) == 0, "it is there"
    second.close()
    third = publisher()
    assert third.newest == 7
    third.close()
    assert latest(read_topic(broker.bootstrap, name, bytes.decode, _json)) == {
        key: {"k": key, "n": number} for number, key in enumerate("abcde")
    }


def test_table_and_topic_each_know_which_batches_they_have(
    platform: Platform, make_spec: MakeSpec, topic: MakeTopic, produce: Produce
) -> None:
    # Given: stopped streams whose last batch is in their table and in their topic, and that Spark will give out again.
    from penstock.compiler.spec import Publish

    source = topic(1)
    specs = {}
    for name, delivery in (("once", "exactly_once"), ("twice", "at_least_once")):
        publish = Publish(topic=f"{source}-{name}", key=("k",), delivery=delivery)
        specs[name] = make_spec(name, source, "select k, v from input").model_copy(update={"publish": publish})
    made = {name: platform.deploy(spec) for name, spec in specs.items()}
    spec, topic_of_once = specs["once"], f"{source}-once"
    group = application(spec.name, made["once"].checkpoint)
    admin = AdminClient(client_config(platform.bootstrap))

    def messages(name: str = "once") -> list[int]:
        return [each.value["v"] for each in read_topic(platform.bootstrap, f"{source}-{name}", value=_json)]

    def rows(name: str = "once") -> list[int]:
        return sorted(row[0] for row in platform.sql(f"select v from {specs[name].name}"))

    def undone(name: str = "once") -> int:
        """Spark's word that the last batch is done is taken back."""
        stop_stream(platform.store, specs[name].name)
        checkpoint = platform.paths.checkpoint(specs[name].name, made[name].checkpoint)
        last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
        for file in ("commits/{}", "commits/.{}.crc"):
            (checkpoint / file.format(last)).unlink(missing_ok=True)
        return last

    def again(v: int, *names: str) -> None:
        for name in names:
            start_stream(platform.store, specs[name].name)
        produce(source, [("a", {"k": "a", "v": v})])
        for name in names:
            there = lambda name=name: (rows(name), messages(name))  # noqa: E731
            platform.until(lambda there=there: all(v in each for each in there()), f"row {v} of {name}", 60, there)

    for name in specs:
        platform.state(specs[name].name, StreamState.RUNNING)
    produce(source, [("a", {"k": "a", "v": 1})])
    for name in specs:
        platform.until(
            lambda name=name: messages(name) == [1], "the first row", 60,
            lambda name=name: platform.store.actual(specs[name].name),
        )  # fmt: skip

    # When it comes again, then it is in both once; at least once, the topic has it again and the table does not.
    for name in specs:
        undone(name)
    again(2, *specs)
    assert (rows(), messages()) == ([1, 2], [1, 2])
    assert (rows("twice"), messages("twice")) == ([1, 2], [1, 1, 2])
    stop_stream(platform.store, specs["twice"].name)

    # When the topic does not have it yet, then it is published, and not written to the table again.
    last = undone()
    place = TopicPartition(topic_of_once, 0, last)  # the number of the next batch: this one
    (done,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [place])]).values()
    done.result(10)
    again(3, "once")
    assert (rows(), messages()) == ([1, 2, 3], [1, 2, 2, 3])

    # When the broker has forgotten, then nobody can know: it is said, and nothing is published.
    undone()
    (gone,) = admin.delete_consumer_groups([group]).values()
    gone.result(10)
    with pytest.raises(PenstockError) as forgotten:
        start_stream(platform.store, spec.name)
    assert forgotten.value.kind is PUBLISH_FORGOTTEN
    assert messages() == [1, 2, 2, 3]


def test_a_stream_in_real_time_publishes_each_message_at_once_and_goes_on_where_it_ended(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce
) -> None:
    project = Project(schema)
    names = {"one": topic(1), "two": topic(2)}
    for name, events in names.items():
        project.source(f"events_{name}", events, {"k": "string", "v": "bigint", "at": "timestamp from timestamp"})
        sql = f"select k, v * 2 as twice, at from {{events_{name}}} where v >= 0"
        publish = {"topic": f"{events}-out", "key": "k", "table": False, "delivery": "at_least_once"}
        project.model(name, sql, mode="real_time", publish=publish)
    specs, out = project.specs(), f"{names['one']}-out"

    # A stream that would take the engine's last core is refused.
    platform.deploy(specs["two"])
    refused = platform.state(specs["two"].name, StreamState.FAILED)
    assert refused.error_code == REAL_TIME_SLOTS.code
    stop_stream(platform.store, specs["two"].name)

    def seen() -> list[int]:
        return sorted({each.value["twice"] for each in read_topic(platform.bootstrap, out, value=_json)})

    platform.deploy(specs["one"])
    platform.state(specs["one"].name, StreamState.RUNNING)
    produce(names["one"], [("a", {"k": "a", "v": v}) for v in (-1, 0, 1)])
    platform.until(lambda: seen() == [0, 2], "the first messages", 60, lambda: platform.store.actual(specs["one"].name))
    produce(names["one"], [("a", {"k": "a", "v": 2})])
    platform.until(lambda: seen() == [0, 2, 4], "a message more", 10)
    (last,) = (each for each in read_topic(platform.bootstrap, out, value=_json) if each.value["twice"] == 4)
    sent_at = datetime.fromisoformat(last.value["at"].replace("Z", "+00:00"))
    assert last.timestamp - sent_at.timestamp() * 1000 < 4000, "not only when a batch of five seconds is over"

    # Its progress is known, and after a stop it goes on there.
    progress = platform.until(lambda: platform.store.progress(specs["one"].name), "a batch", 30)
    assert {each.writer for each in progress if each.rows_out} == {"kafka"}
    stop_stream(platform.store, specs["one"].name)
    produce(names["one"], [("a", {"k": "a", "v": 3})])
    start_stream(platform.store, specs["one"].name)
    platform.until(lambda: seen() == [0, 2, 4, 6], "what came meanwhile", 60)
    stop_stream(platform.store, specs["one"].name)


def test_a_stream_goes_into_real_time_and_back_on_its_checkpoint(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce
) -> None:
    events, specs = topic(1), {}
    for mode in ("micro_batch", "real_time"):
        project = Project(schema)
        project.source("events", events, {"v": "bigint"})
        publish = {"topic": f"{events}-out", "table": False, "delivery": "at_least_once"}
        project.model("modes", "select v from {events}", mode=mode, publish=publish)
        specs[mode] = project.specs()["modes"]
    name = specs["micro_batch"].name
    made = platform.deploy(specs["micro_batch"])
    checkpoint = platform.paths.checkpoint(name, made.checkpoint)

    def newest(log: str) -> Path:
        files = [file for file in (checkpoint / log).iterdir() if file.name.isdigit()]
        return max(files, key=lambda file: int(file.name), default=checkpoint / log)

    def done(messages: int) -> bool:
        """Whether the checkpoint says that so many are read, and their batch is done."""
        (ends,) = json.loads(newest("offsets").read_text().splitlines()[2]).values()
        return bool(newest("commits").name == newest("offsets").name and ends["0"] == messages)

    def more(v: int, *, once: int) -> None:
        """A message more: none is lost, and the first so many have come once."""
        produce(events, [{"v": v}])
        seen = lambda: sorted(each.value["v"] for each in read_topic(platform.bootstrap, f"{events}-out", value=_json))  # noqa: E731
        last = lambda: (seen(), platform.store.actual(name))  # noqa: E731
        platform.until(lambda: set(seen()) == set(range(v + 1)), f"the messages to {v}", 60, last)
        platform.until(lambda: done(v + 1), "the end of the batch", 30, last)
        assert [each for each in seen() if each < once] == list(range(once))

    # Of a batch that is done nothing comes again, and what comes later is read.
    more(0, once=1)
    for v, mode in enumerate(("real_time", "micro_batch"), 1):
        found = platform.deploy(specs[mode])
        assert (found.verdict, found.checkpoint) == ("RESTART", made.checkpoint)
        platform.until(lambda found=found: platform.store.actual(name).generation == found.generation, "its restart")
        platform.state(name, StreamState.RUNNING)  # what the old query still published would come again
        more(v, once=v + 1)

    # What was begun in the other mode, and is not known to be done, comes again, and nothing else.
    for v, mode in enumerate(("real_time", "micro_batch"), 3):
        stop_stream(platform.store, name)
        batch = newest("commits")
        for file in (batch, batch.with_name(f".{batch.name}.crc")):
            file.unlink(missing_ok=True)
        platform.deploy(specs[mode])
        start_stream(platform.store, name)
        more(v, once=2)
    stop_stream(platform.store, name)


def _json(raw: bytes | None) -> Any:
    return None if raw is None else json.loads(raw)
