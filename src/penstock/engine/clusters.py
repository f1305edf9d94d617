"""Whether the topics of a stream are on the Kafka clusters that its checkpoint was read from.

Rules
- It is looked at whenever a stream starts, before anything of it is. What is found is written down; a checkpoint that
  says nothing takes what is there.
- A broker that does not answer says nothing: the stream starts as ever, and Spark tells what is wrong. Such a broker is
  left alone for a moment, for other streams wait for their start.
- A table that is refreshed in full has no place in a topic: it is computed anew (`engine.refresh`).
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.checkpoint.clusters import Cluster, note, noted, others, read_from
from penstock.compiler.spec import KafkaInput, StreamSpec
from penstock.engine import runtime, snapshot, topic_files
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import CLUSTER_CHANGED
from penstock.kafka.admin import cluster_id

_SPARED = 10.0  # seconds that a broker which did not answer is left alone


class Clusters:
    """Asks the brokers of streams; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent: dict[str, float] = {}  # address -> until when it is left alone

    def check(self, session: SparkSession, spec: StreamSpec, checkpoint: Path) -> None:
        """Note the clusters of a stream's topics; CLUSTER_CHANGED when one is not that of its offsets."""
        if spec.is_full or topic_files.home(session) is not None:  # a test has no broker
            return
        inputs = [item for item in spec.inputs if isinstance(item, KafkaInput)]
        now = {item.relation: found for item in inputs if (found := self._of(session, item)) is not None}
        before = read_from(checkpoint)
        for relation in others(before, now):
            known, found = before[relation], now[relation]
            raise CLUSTER_CHANGED.error(
                f"{spec.name}: {relation} was read from the Kafka cluster {known.id} at {known.address}, and at "
                f"{found.address} is {found.id}.",
                at=Location(spec.path),
            )
        if now.items() - noted(checkpoint).items():
            note(checkpoint, {**before, **now})

    def _of(self, session: SparkSession, source: KafkaInput) -> Cluster | None:
        try:
            broker = runtime.broker_of(session, snapshot.topic_of(source))
        except PenstockError:
            return None  # the query is told the same when it is built
        with self._lock:
            if self._silent.get(broker.bootstrap, 0.0) > time.monotonic():
                return None
        found = cluster_id(broker.bootstrap, dict(broker.options))
        if found is None:
            with self._lock:
                self._silent[broker.bootstrap] = time.monotonic() + _SPARED
            return None
        return Cluster(found, broker.bootstrap)
