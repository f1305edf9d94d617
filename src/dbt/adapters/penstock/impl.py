"""The adapter: dbt-spark's, with Delta as the format of tables, fewer round trips, and streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import BaseRelation, available
from dbt.adapters.base.impl import FreshnessResponse
from dbt.adapters.capability import Capability, CapabilityDict, CapabilitySupport, Support
from dbt.adapters.contracts.connection import AdapterResponse
from dbt.adapters.contracts.relation import RelationConfig, RelationType
from dbt.adapters.spark.column import SparkColumn
from dbt.adapters.spark.impl import (
    LIST_RELATIONS_MACRO_NAME,
    SCHEMA_NOT_FOUND_MESSAGES,
    SparkAdapter,
)
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.penstock.connections import PenstockConnectionManager, logger
from dbt.adapters.penstock.errors import StreamError
from dbt.adapters.penstock.freshness import freshness, source_of
from dbt.adapters.penstock.project import project_dir, target_dir
from dbt.adapters.penstock.session import local_rows, quoted
from dbt.adapters.penstock.streams import Request, StreamResponse, compiled, deployed, in_the_way
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import CHANGE_NEEDS_REBUILD, TABLE_CONFLICT

if TYPE_CHECKING:
    import agate

    from penstock.store import Store

DYNAMIC_TABLE = "dynamic_table"
_TABLES = frozenset({"table", "incremental", "snapshot", "seed"})
_OWNER_PROPERTY = "penstock.stream"


class PenstockAdapter(SparkAdapter):  # type: ignore[misc]
    """dbt's way to the engine."""

    ConnectionManager = PenstockConnectionManager
    # Not in batch: of one broker, several topics cost little more than one, and dbt hands over no manifest there.
    _capabilities = CapabilityDict({Capability.TableLastModifiedMetadata: CapabilitySupport(support=Support.Full)})

    def __init__(self, config: Any, mp_context: Any) -> None:
        super().__init__(config, mp_context)
        self._store: Store | None = None
        self._opening = Lock()

    @classmethod
    def type(cls) -> str:
        return "penstock"

    @classmethod
    def _get_adapter_specific_run_info(cls, config: RelationConfig) -> dict[str, Any]:
        return {"adapter_type": cls.type(), "table_format": "delta"}

    def cleanup_connections(self) -> None:
        super().cleanup_connections()
        with self._opening:
            if self._store is not None:
                self._store.close()
                self._store = None

    # -- streams ------------------------------------------------------------------------------------------------------
    @available.parse(lambda *args, **kwargs: {})  # type: ignore[untyped-decorator]
    def deploy_stream(
        self,
        model: Mapping[str, Any],
        sql: str,
        graph: Mapping[str, Any],
        full_refresh: bool = False,
        empty: bool = False,
    ) -> StreamResponse:
        """Compile a dynamic table and make it the desired state of its stream."""
        request = Request(model, sql, graph, full_refresh, empty)
        try:
            spec = compiled(request, project_dir(self.config), target_dir(self.config))
            self.connections.endpoint()
            existing = self.get_relation("", str(model["schema"]), str(model["alias"]))
            foreign = existing is not None and not self._is_of_stream(existing, spec.name)
            if foreign and not full_refresh:
                raise in_the_way(spec, str(existing.type))
            if existing is None and not full_refresh and not empty:
                self._refuse_lost_table(spec.name, spec.path)
            response = deployed(self._open_store(), self.connections.paths, spec, request, logger.info)
            if foreign:
                self.cache_dropped(existing)  # the engine replaced it, once Spark had accepted the model
            return response
        except PenstockError as error:
            raise StreamError(error) from None

    def _refuse_lost_table(self, stream: str, path: str) -> None:
        """A deployed stream whose table was dropped by hand would go on behind the rows that are gone."""
        if self._open_store().find_desired(stream) is not None:
            raise CHANGE_NEEDS_REBUILD.error(f"The table of {stream} is gone.", at=Location(path))

    def _is_of_stream(self, relation: BaseRelation, stream: str) -> bool:
        if not relation.is_table:
            return False
        if self._open_store().find_desired(stream) is not None:
            return True
        _, rows = self.execute(f"show tblproperties {relation.render()}", fetch=True)
        return (_OWNER_PROPERTY, stream) in {(row[0], row[1]) for row in rows}

    def _open_store(self) -> Store:
        with self._opening:
            if self._store is None:
                from penstock.store import Store

                self._store = Store.open(self.config.credentials.store or self.connections.paths.store)
            return self._store

    # -- freshness of sources -----------------------------------------------------------------------------------------
    def calculate_freshness_from_metadata(
        self, source: BaseRelation, macro_resolver: Any = None
    ) -> tuple[AdapterResponse | None, FreshnessResponse]:
        """How old the latest message of a stream is; dbt asks this of sources without `loaded_at_field`."""
        try:
            kafka = self.config.credentials.settings(self.config.target_name).kafka
            return freshness(source_of(source, macro_resolver.sources), kafka, project_dir(self.config))
        except PenstockError as error:
            raise StreamError(error) from None

    def _relations_cache_for_schemas(self, relation_configs: Any, cache_schemas: Any = None) -> None:
        """What exists in the schemas; not for freshness, which would start the engine only to fill a cache."""
        from dbt.flags import get_flags

        if getattr(get_flags(), "WHICH", None) != "freshness":
            super()._relations_cache_for_schemas(relation_configs, cache_schemas)

    # -- other materializations ---------------------------------------------------------------------------------------
    def pre_model_hook(self, config: Any) -> dict[str, Any]:
        """Give a model the settings that are the default here and not in dbt-spark; they are taken back afterwards."""
        settings = config.model.config
        kind = settings.get("materialized")
        if kind in _TABLES or kind == "view":
            self._keep_off_streams(config.model)
        defaults: dict[str, Any] = {}
        if kind in _TABLES or kind == DYNAMIC_TABLE:
            defaults["file_format"] = "delta"
        if kind == "incremental" and settings.get("unique_key"):
            defaults["incremental_strategy"] = "merge"
        given = {key: value for key, value in defaults.items() if not settings.get(key)}
        before = {key: settings.get(key) for key in given}
        for key, value in given.items():
            settings[key] = value
        return before

    def post_model_hook(self, config: Any, context: dict[str, Any] | None) -> None:
        for key, value in (context or {}).items():
            settings = config.model.config  # of a data test, dbt passes something else here, and no context
            if value is None and key in settings._extra:
                del settings[key]
            else:
                settings[key] = value

    def _keep_off_streams(self, model: Any) -> None:
        """A table that a stream writes must not be replaced under it."""
        name = f"{model.schema}.{model.alias}"
        if not self.config.credentials.store and not self.connections.paths.store.exists():
            return
        try:
            if self._open_store().find_desired(name) is None:
                return
            raise TABLE_CONFLICT.error(
                f"{name} is the table of a stream; the model is a {model.config.materialized} now.",
                at=Location(model.original_file_path),
                hint=f"End the stream with 'penstock drop {name}', or rename the model.",
            )
        except PenstockError as error:
            raise StreamError(error) from None

    @available.parse_none  # type: ignore[untyped-decorator]
    def load_seed(self, relation: BaseRelation, rows: agate.Table, types: Mapping[str, str]) -> None:
        """Replace the rows of a seed's table in one commit: a stream that joins it sees the old ones or the new."""
        session = self.connections.get_thread_connection().handle
        names = [str(name) for name in rows.column_names]
        local_rows(session, rows.rows, names).createOrReplaceTempView("penstock_seed_rows")
        casts = ", ".join(f"cast({self.quote(name)} as {types[name]}) as {self.quote(name)}" for name in names)
        self.execute(f"insert overwrite table {relation.render()} select {casts} from penstock_seed_rows")

    @available  # type: ignore[untyped-decorator]
    def text_literal(self, text: str) -> str:
        """A string as a Spark SQL literal."""
        return quoted(text)

    # -- catalogue ----------------------------------------------------------------------------------------------------
    def list_relations_without_caching(self, schema_relation: BaseRelation) -> list[BaseRelation]:
        """Tables and views of a schema, in one round trip; temporary views belong to a session and are left out."""
        try:
            rows = self.execute_macro(LIST_RELATIONS_MACRO_NAME, kwargs={"schema_relation": schema_relation})
        except DbtRuntimeError as error:
            if any(message in str(error.msg) for message in SCHEMA_NOT_FOUND_MESSAGES):
                return []
            raise
        return [self._relation(row) for row in rows if row["namespace"]]

    def _relation(self, row: Any) -> BaseRelation:
        information = row["information"]
        return self.Relation.create(
            schema=row["namespace"],
            identifier=row["tableName"],
            type=RelationType.View if "\nType: VIEW\n" in information else RelationType.Table,
            information=information,
            is_delta="\nProvider: delta\n" in information,
            is_iceberg=False,
            is_hudi=False,
        )

    @available  # type: ignore[untyped-decorator]
    def outdated_comments(self, relation: BaseRelation, model: Mapping[str, Any]) -> dict[str, Any]:
        """Descriptions that the table does not have yet: {'relation': text or none, 'columns': {name: text}}.

        A change of a comment is a commit, and a commit can make a stream's batch start over: none without need.
        """
        columns, details = self._described(relation)
        has = {name.lower(): (name, comment) for name, _, comment in columns}
        wanted = {
            has[name.lower()][0]: column["description"]
            for name, column in model["columns"].items()
            if name.lower() in has and column["description"] != has[name.lower()][1]
        }
        description = model.get("description") or ""
        return {
            "relation": description if description != details.get("Comment", "") else None,
            "columns": wanted,
        }

    def _get_columns_for_catalog(self, relation: BaseRelation) -> Iterable[dict[str, Any]]:
        columns, details = self._described(relation)
        stats = SparkColumn.convert_table_stats(details.get("Statistics"))
        for index, (name, kind, comment) in enumerate(columns):
            yield {
                "table_database": None,
                "table_schema": relation.schema,
                "table_name": relation.identifier,
                "table_type": str(relation.type),
                "table_comment": details.get("Comment", ""),
                "table_owner": details.get("Owner", ""),
                "column_name": name,
                "column_index": index,
                "column_type": kind,
                "column_comment": comment,
                **stats,
            }

    def _described(self, relation: BaseRelation) -> tuple[list[tuple[str, str, str]], dict[str, str]]:
        """Columns (name, type, comment) and details of a table or view."""
        _, rows = self.execute(f"describe extended {relation.render()}", fetch=True)
        columns: list[tuple[str, str, str]] = []
        details: dict[str, str] = {}
        in_columns = True
        for name, kind, comment in rows:
            if not name or name.startswith("#"):
                in_columns = False
            elif in_columns:
                columns.append((name, kind, comment or ""))
            else:
                details[name] = kind or ""
        return columns, details
