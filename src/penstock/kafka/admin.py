"""Questions to a broker, with the answers a user understands.

Rules
- An address is resolved in one place: the source's own, else PENSTOCK_KAFKA, else the profile's, else the embedded
  broker's file. It is never stored with a stream, but for noticing another one: see `checkpoint.clusters`.
- Options are written as for Spark's Kafka source (with or without the prefix `kafka.`), secrets as references. Those
  that name credentials and encryption are translated for the client used here; the others concern reading, and are
  left out.
- Every call has a deadline and ends in a value or in an error of the catalogue.
"""

from __future__ import annotations

import json
import os
import re
import socket
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.errors import PenstockError
from penstock.errors.catalogue import AUTH_REFUSED, BROKER_NOT_CONFIGURED, BROKER_UNREACHABLE, TOPIC_MISSING
from penstock.kafka.security import Value, resolved
from penstock.paths import ProjectPaths

Options = Mapping[str, Value]

TIMEOUT = 10.0
_QUICK = 3.0  # seconds for an answer that one can do without
ENV = "PENSTOCK_KAFKA"

_SHARED = frozenset({
    "security.protocol", "sasl.username", "sasl.password", "ssl.ca.location", "ssl.certificate.location",
    "ssl.key.location", "ssl.key.password", "ssl.endpoint.identification.algorithm", "client.id",
})  # fmt: skip
_RENAMED = {
    "sasl.mechanism": "sasl.mechanisms", "sasl.mechanisms": "sasl.mechanisms",
    "ssl.truststore.certificates": "ssl.ca.pem", "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}  # fmt: skip
_JAAS = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


def resolve_bootstrap(explicit: str | None, settings_bootstrap: str | None, paths: ProjectPaths) -> str:
    """The broker's address for a source that names `explicit` or nothing."""
    configured = explicit or os.environ.get(ENV) or settings_bootstrap
    if configured:
        return configured
    try:
        found = json.loads((paths.kafka / "broker.json").read_text(encoding="utf-8"))
        return str(found["bootstrap"])
    except FileNotFoundError:
        if paths.kafka.is_dir():
            raise BROKER_UNREACHABLE.error(
                "The embedded broker is not running.", hint="'penstock up' starts it; its data is kept."
            ) from None
        raise BROKER_NOT_CONFIGURED.error("No address of a Kafka broker is known.") from None
    except (ValueError, KeyError, TypeError) as cause:
        raise BROKER_NOT_CONFIGURED.error(f"{paths.kafka / 'broker.json'} cannot be read: {cause}.") from cause


def client_config(bootstrap: str, options: Options | None = None) -> dict[str, Any]:
    """Configuration of a librdkafka client from the options of a source."""
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "log_level": 0,  # the client would write to the terminal by itself
        "socket.timeout.ms": int(TIMEOUT * 1000),
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "broker.address.family": "v4" if bootstrap.startswith("127.") else "any",
    }
    for key, value in resolved(options or {}).items():
        if key in _SHARED:
            config[key] = value
        elif key in _RENAMED:
            config[_RENAMED[key]] = value
        elif key == "sasl.jaas.config":
            config |= {f"sasl.{name}": re.sub(r"\\(.)", r"\1", text) for name, text in _JAAS.findall(value)}
    if config.get("ssl.endpoint.identification.algorithm") == "":
        config["ssl.endpoint.identification.algorithm"] = "none"  # what Java leaves empty
    return config


def topics(bootstrap: str, options: Options | None = None) -> dict[str, int]:
    """Every topic with its number of partitions; BROKER_UNREACHABLE when nobody answers."""
    _check_addresses(bootstrap)
    refused: list[KafkaError] = []
    client = AdminClient(client_config(bootstrap, options) | {"error_cb": refused.append})
    try:
        found = client.list_topics(timeout=TIMEOUT)
    except KafkaException as cause:
        client.poll(0)  # what went wrong on the way is told to the callback, and the call itself only runs out of time
        for error in refused:
            if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
                raise AUTH_REFUSED.error(f"The broker at {bootstrap} refused the credentials.") from None
        raise _unreachable(bootstrap, cause) from cause
    return {name: len(topic.partitions) for name, topic in found.topics.items() if topic.error is None}


def answers(bootstrap: str, options: Options | None = None, *, timeout: float = 2.0) -> bool:
    """Does a broker answer with its metadata?"""
    try:
        return bool(AdminClient(client_config(bootstrap, options)).list_topics(timeout=timeout).brokers)
    except KafkaException:
        return False


def cluster_id(bootstrap: str, options: Options | None = None) -> str | None:
    """The id of the cluster that is there; None when nobody answers soon, or it has none."""
    try:
        _check_addresses(bootstrap, _QUICK)
        found = AdminClient(client_config(bootstrap, options)).list_topics(timeout=_QUICK).cluster_id
    except (KafkaException, PenstockError):
        return None
    return str(found) if found else None


def check_topic(bootstrap: str, topic: str, options: Options | None = None) -> int:
    """The topic's number of partitions; BROKER_UNREACHABLE or TOPIC_MISSING."""
    known = topics(bootstrap, options)
    if topic not in known:
        raise _missing(bootstrap, topic)
    return known[topic]


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The topics that a pattern means: its whole name, and none of Kafka's own."""
    return sorted(name for name in names if not name.startswith("__") and re.fullmatch(pattern, name))


def create_topics(bootstrap: str, wanted: Mapping[str, int], options: Options | None = None) -> list[str]:
    """Create the topics (name -> partitions) that do not exist; the names of those that are new."""
    known = topics(bootstrap, options)
    new = {name: partitions for name, partitions in wanted.items() if name not in known}
    if not new:
        return []
    admin = AdminClient(client_config(bootstrap, options))
    pending = admin.create_topics(
        [NewTopic(name, num_partitions=partitions, replication_factor=1) for name, partitions in new.items()],
        operation_timeout=TIMEOUT,
    )
    created = []
    for name, future in pending.items():
        try:
            future.result(timeout=2 * TIMEOUT)
            created.append(name)
        except KafkaException as cause:
            # somebody else was quicker: that is what was wanted
            if cause.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _unreachable(bootstrap, cause) from cause
    return created


def end_offsets(bootstrap: str, topic: str, options: Options | None = None) -> dict[int, int]:
    """Per partition, the offset that the next message will get."""
    return {partition: high for partition, (_, high) in _watermarks(bootstrap, topic, options).items()}


def begin_offsets(bootstrap: str, topic: str, options: Options | None = None) -> dict[int, int]:
    """Per partition, the oldest offset that is still there."""
    return {partition: low for partition, (low, _) in _watermarks(bootstrap, topic, options).items()}


def timestamp_at(
    bootstrap: str, topic: str, partition: int, offset: int, options: Options | None = None
) -> float | None:
    """Epoch seconds of the message at or after the offset; None when there is none (yet)."""
    consumer = _consumer(bootstrap, options)
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT)
        start = max(offset, low)
        if start >= high:
            return None
        consumer.assign([TopicPartition(topic, partition, start)])
        message = consumer.poll(TIMEOUT)
        if message is None:
            return None
        if message.error():
            raise KafkaException(message.error())
        kind, milliseconds = message.timestamp()
        return None if kind == 0 else milliseconds / 1000.0  # 0: the message carries no time
    except KafkaException as cause:
        raise translated(bootstrap, topic, cause) from cause
    finally:
        consumer.close()


def _check_addresses(bootstrap: str, timeout: float = TIMEOUT) -> None:
    """Fail at once when every address refuses or does not exist; the client would go on trying until its deadline."""
    refusals = []
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition("://")[2].rpartition(":")
        if not host or not port.isdigit():
            refusals.append(f"'{address.strip()}' is not host:port")
            continue
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=timeout).close()
        except (ConnectionRefusedError, socket.gaierror) as cause:
            refusals.append(cause.strerror or "refused")
        except OSError:
            return  # slow or odd: the client decides
        else:
            return
    raise BROKER_UNREACHABLE.error(f"No Kafka broker answers at {bootstrap} ({refusals[0].lower()}).")


def _watermarks(bootstrap: str, topic: str, options: Options | None) -> dict[int, tuple[int, int]]:
    partitions = range(check_topic(bootstrap, topic, options))
    consumer = _consumer(bootstrap, options)
    try:
        return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=TIMEOUT) for p in partitions}
    except KafkaException as cause:
        raise translated(bootstrap, topic, cause) from cause
    finally:
        consumer.close()


def _consumer(bootstrap: str, options: Options | None) -> Any:
    return Consumer(
        client_config(bootstrap, options)
        | {
            # assigned by hand and never committed: the group exists in name only
            "group.id": f"penstock-{uuid.uuid4().hex[:12]}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,
        }
    )


def translated(bootstrap: str, topic: str, cause: KafkaException) -> Exception:
    """What the client says of a topic, as an error of the catalogue."""
    unknown = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
    if cause.args and cause.args[0].code() in unknown:
        return _missing(bootstrap, topic)
    return _unreachable(bootstrap, cause)


def _missing(bootstrap: str, topic: str) -> Exception:
    return TOPIC_MISSING.error(f"The broker at {bootstrap} has no topic '{topic}'.")


def _unreachable(bootstrap: str, cause: KafkaException) -> Exception:
    said = cause.args[0].str() if cause.args else "no answer"
    return BROKER_UNREACHABLE.error(f"No Kafka broker answers at {bootstrap} ({said}).")
