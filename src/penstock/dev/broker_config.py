"""The embedded broker's settings: one node that is broker and controller, small, on loopback.

Rules
- Only loopback addresses; nothing on another machine can reach the broker.
- Buffers and internal topics are sized for one developer, so that a heap of a few hundred MB is ample.
- Topics are created on purpose: a misspelt topic is an error, not a new and empty one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.dev.ports import HOST

# Measured on two cores, one run each: the quick compiler alone (TieredStopAtLevel=1) brings the first start from 4.9 to
# 3.3 s and a later one from 3.8 to 2.2 s; with the serial collector the resident memory at the start falls from 214 to
# 157 MB. The broker mostly moves bytes between disk and socket, which compiled code does not hasten.
JVM = (
    "-Xms96m",
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)


# Of these a broker has several, separated by commas: more are added, not put in their place.
_LISTS = frozenset({"listeners", "advertised.listeners", "listener.security.protocol.map"})


def server_properties(*, data: Path, port: int, controller_port: int, more: Mapping[str, str] | None = None) -> str:
    """The text of server.properties; `more` are settings that a test needs, such as listeners with credentials."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": _escaped(str(data)),
        "auto.create.topics.enable": "false",
        # one node: a replica each
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        # small: the defaults reserve 128 MB for the cleaner alone
        "log.cleaner.dedupe.buffer.size": "4194304",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "2",
        # quick: nobody else joins, nobody takes over
        "group.initial.rebalance.delay.ms": "0",
        # a killed broker may come back only after its old session has run out: 9 s by default
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "4000",
    }
    for name, value in (more or {}).items():
        settings[name] = f"{settings[name]},{value}" if name in _LISTS else value
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def log4j_properties() -> str:
    """Warnings, and the few lines that tell of start and stop, to the process's own output."""
    return """\
status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
logger.start.name = kafka.server.BrokerServer
logger.start.level = info
"""


def _escaped(text: str) -> str:
    # a backslash begins an escape in a properties file
    return text.replace("\\", "\\\\")
