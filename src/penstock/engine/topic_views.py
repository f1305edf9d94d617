"""Sources as views of the catalog: made, restored when the engine starts, dropped.

Rules
- A view and a table of records are a source's own (`penstock.source`); anything else of that name stays as it is.
- The catalog holds references only. What they refer to is written when the engine starts, when a source is registered,
  and when the broker of the project is at another address than before.
- Messages with a schema are decoded by what the registry knows; that is asked again every minute, and a view is
  replaced when there is more to know. Sessions that are open see Protobuf's new function after they connect again.
- A source that cannot be reached, or lacks a secret, keeps its view; reading it says so.
"""

from __future__ import annotations

import logging
import threading

from py4j.protocol import Py4JError
from pydantic import ValidationError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from penstock.compiler import topic_view
from penstock.compiler.messages import messages
from penstock.compiler.spec import KafkaInput
from penstock.engine import failures, runtime, tables
from penstock.engine.messages import REGISTRY_CONF, decoded_sql
from penstock.engine.properties import PropertiesFile
from penstock.errors import PenstockError
from penstock.errors.catalogue import SOURCE_ANALYSIS, TABLE_CONFLICT
from penstock.paths import ProjectPaths
from penstock.store import Store

log = logging.getLogger("penstock.engine")

REGISTRY_EVERY = 60.0


class TopicViews:
    """The sources that can be queried."""

    def __init__(self, spark: SparkSession, store: Store, paths: ProjectPaths) -> None:
        self._spark = spark.newSession()
        for name in (runtime.BOOTSTRAP_CONF, runtime.KAFKA_CONF, REGISTRY_CONF, runtime.PROJECT_CONF):
            if (value := spark.conf.get(name, None)) is not None:
                self._spark.conf.set(name, value)
        self._store = store
        self._file = PropertiesFile(paths.project / topic_view.PROPERTIES)
        self._sources: dict[str, KafkaInput] = {}
        self._values: dict[str, dict[str, str]] = {}  # relation -> properties of its client, secrets and all
        self._broker: str | None = None
        self._views: dict[str, str] = {}  # relation -> the statement that made its view
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def restore(self) -> None:
        """Bring back what the sources that the store knows need."""
        for known in self._store.sources().values():
            try:
                source = KafkaInput.model_validate_json(known.spec_json)
            except ValidationError:
                log.warning("source %s was registered by another version; 'dbt run' registers it anew", known.relation)
                self._store.forget_source(known.relation)
                continue
            try:
                if sorted(self._look_up(source)) != known.properties or not self._is_there(source):
                    properties = self.register(source)
                    self._store.put_source(source.relation, known.spec_json, known.hash, properties)
                elif _has_schema(source):
                    self._make_view(source)  # its functions ended with the engine before
            except (PenstockError, AnalysisException) as problem:
                log.warning("source %s cannot be read: %s", known.relation, failures.sentence(problem))
        self._write()
        threading.Thread(target=self._follow_registries, name="registries", daemon=True).start()

    def register(self, source: KafkaInput) -> list[str]:
        """Make or replace the source's table of records and its view; the names of the client's properties."""
        with self._lock:
            properties = sorted(self._look_up(source))
            self._check_name(source.relation)
            self._write()
            schema = source.relation.rpartition(".")[0]
            for name in (schema, topic_view.SCHEMA):
                self._spark.sql(f"CREATE SCHEMA IF NOT EXISTS {tables.quoted(name)}")
            # No view is without its table: it is dropped first, and made last.
            self._drop(source.relation)
            self._spark.sql(topic_view.create_records(source, properties))
            self._views.pop(source.relation, None)
            self._make_view(source)
            return properties

    def _make_view(self, source: KafkaInput) -> None:
        """Make the source's view as it should be now, unless it is that already."""
        statement = topic_view.create_view(source, self._records(source))
        if self._views.get(source.relation) == statement:
            return
        try:
            self._spark.sql(statement)
        except AnalysisException as problem:
            raise SOURCE_ANALYSIS.error(f"source {source.relation}: {failures.sentence(problem)}") from problem
        self._views[source.relation] = statement

    def _follow_registries(self) -> None:
        """Take up schemas that came after the views were made."""
        while not self._ended.wait(REGISTRY_EVERY):
            for source in [each for each in list(self._sources.values()) if _has_subjects(each)]:
                try:
                    with self._lock:
                        if source.relation in self._views:
                            self._make_view(source)
                except (PenstockError, PySparkException, Py4JError) as problem:
                    log.warning("the view of %s stays as it is: %s", source.relation, failures.sentence(problem))

    def _records(self, source: KafkaInput) -> str:
        """What the view selects from: the records, with their messages where these have a schema."""
        records = topic_view.records_table(source.relation)
        registry = {name: value if isinstance(value, str) else value.plain() for name, value in source.registry}
        return decoded_sql(self._spark, records, source.relation, messages(source, source.columns), registry)

    def drop(self, relation: str) -> None:
        with self._lock:
            self._drop(relation)
            self._sources.pop(relation, None)
            self._values.pop(relation, None)
            self._views.pop(relation, None)
            self._write()

    def check(self) -> None:
        """Follow the project's broker to its present address."""
        if not any(source.bootstrap is None for source in self._sources.values()):
            return
        try:
            broker = runtime.bootstrap(self._spark, None)
        except PenstockError:
            return  # it is down, or between two starts
        if broker != self._broker:
            with self._lock:
                for source in list(self._sources.values()):
                    self._look_up(source)
                self._write()

    def close(self) -> None:
        self._ended.set()
        self._file.remove()

    def _look_up(self, source: KafkaInput) -> dict[str, str]:
        """The properties of the source's client as they are now."""
        self._sources[source.relation] = source
        own = {name: value if isinstance(value, str) else value.plain() for name, value in source.options}
        found = runtime.kafka_options(self._spark, source.bootstrap, own)
        self._values[source.relation] = found
        if source.bootstrap is None:
            self._broker = found["kafka.bootstrap.servers"]
        return found

    def _write(self) -> None:
        self._file.write(
            {
                topic_view.key(relation, name.removeprefix(topic_view.PREFIX)): value
                for relation, values in self._values.items()
                for name, value in values.items()
            }
        )

    def _is_there(self, source: KafkaInput) -> bool:
        catalog = self._spark.catalog
        return bool(
            catalog.tableExists(topic_view.records_table(source.relation))
            and catalog.tableExists(tables.quoted(source.relation))
        )

    def _check_name(self, relation: str) -> None:
        if tables.exists(self._spark, relation) and self._owner(relation) != relation:
            raise TABLE_CONFLICT.error(
                f"{relation} exists and is not the source of that name.",
                hint="Drop it, or give the source another 'schema' or 'identifier'.",
            )

    def _owner(self, relation: str) -> str | None:
        rows = self._spark.sql(f"SHOW TBLPROPERTIES {tables.quoted(relation)}").collect()
        return next((str(row["value"]) for row in rows if row["key"] == topic_view.OWNER), None)

    def _drop(self, relation: str) -> None:
        if tables.exists(self._spark, relation) and self._owner(relation) == relation:
            self._spark.sql(f"DROP VIEW IF EXISTS {tables.quoted(relation)}")
        self._spark.sql(f"DROP TABLE IF EXISTS {topic_view.records_table(relation)}")


def _has_schema(source: KafkaInput) -> bool:
    return source.key_schema is not None or source.value_schema is not None


def _has_subjects(source: KafkaInput) -> bool:
    return any(schema is not None and schema.subjects for schema in (source.key_schema, source.value_schema))
