"""The adapter: dbt-spark's, with Delta as the format of tables, fewer round trips, and streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import BaseRelation, available
from dbt.adapters.base.impl import FreshnessResponse
from dbt.adapters.capability import Capability, CapabilityDict, CapabilitySupport, Support
from dbt.adapters.contracts.connection import AdapterResponse
from dbt.adapters.contracts.relation import RelationConfig

from dbt.adapters.penstock.called import with_functions
from dbt.adapters.penstock.connections import PenstockConnectionManager, logger
from dbt.adapters.penstock.dbt_own import DbtOwn
from dbt.adapters.penstock.deferred import with_deferred
from dbt.adapters.penstock.errors import StreamError
from dbt.adapters.penstock.freshness import freshness, source_of
from dbt.adapters.penstock.project import project_dir, target_dir
from dbt.adapters.penstock.session import local_rows, quoted
from dbt.adapters.penstock.sources import Places, SourceTables, deploy_quarantines, read_by
from dbt.adapters.penstock.streams import Request, StreamResponse, compiled, deployed, in_the_way, read_sources, told
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import CHANGE_NEEDS_REBUILD, CLONE_OVER_STREAM, TABLE_CONFLICT

if TYPE_CHECKING:
    import agate

    from penstock.store import Store

DYNAMIC_TABLE = "dynamic_table"
_TABLES = frozenset({"table", "incremental", "snapshot", "seed"})
_OWNER_PROPERTY = "penstock.stream"


class PenstockAdapter(DbtOwn):
    """dbt's way to the engine."""

    ConnectionManager = PenstockConnectionManager
    # Not in batch: of one broker, several topics cost little more than one, and dbt hands over no manifest there.
    _capabilities = CapabilityDict({Capability.TableLastModifiedMetadata: CapabilitySupport(support=Support.Full)})

    def __init__(self, config: Any, mp_context: Any) -> None:
        super().__init__(config, mp_context)
        self._store: Store | None = None
        self._opening = Lock()
        places = Places(self.connections.paths, project_dir(config), target_dir(config))
        self._source_tables = SourceTables(places, self._open_store, logger.info, self._pin)
        self.connections.on_engine = self._register_sources

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
    @available  # type: ignore[untyped-decorator]
    def is_live_test(self, model: Mapping[str, Any]) -> bool:
        """Whether a data test is kept by a stream."""
        from penstock.project.live import is_live_test

        return is_live_test(model)

    @available.parse(lambda *args, **kwargs: {})  # type: ignore[untyped-decorator]
    def deploy_stream(
        self,
        model: Mapping[str, Any],
        sql: str,
        graph: Mapping[str, Any],
        full_refresh: bool = False,
        empty: bool = False,
        selected: Iterable[str] = (),
        run_refreshes: bool = False,
    ) -> StreamResponse:
        """Compile a dynamic table and make it the desired state of its stream."""
        manifest = self.get_macro_resolver()
        graph = with_deferred(graph, manifest, sql)
        graph = with_functions(graph, manifest, str(model["unique_id"]), sql, self._sql_of)
        request = Request(model, sql, graph, full_refresh, empty, tuple(selected), run_refreshes)
        try:
            self._pin(read_sources(request))
            spec = compiled(request, project_dir(self.config), target_dir(self.config))
            self.connections.endpoint()
            existing = self.get_relation("", str(model["schema"]), str(model["alias"]))
            foreign = existing is not None and not self._is_of_stream(existing, spec.name)
            if foreign and not full_refresh:
                raise in_the_way(spec, str(existing.type))
            if existing is None and not full_refresh and not empty:
                self._refuse_lost_table(spec.name, spec.path)
            read = [each.relation for each in spec.inputs]
            # What the config of one of its readers says is not said of a source table.
            sources = self._source_tables.deploy(graph["sources"], read, full_refresh=run_refreshes, empty=empty)
            response = deployed(self._open_store(), self.connections.paths, spec, request, logger.info)
            if response.changed:
                for line in told(spec):
                    logger.warning(line)
            response.sources += sources
            if response.verdict == "REFUSED":
                logger.warning(f"{spec.name}: the change is not applied: {'; '.join(response.reasons)}")
            if foreign:
                self.cache_dropped(existing)  # the engine replaced it, once Spark had accepted the model
            return response
        except PenstockError as error:
            raise StreamError(error) from None

    def _pin(self, sources: Sequence[Mapping[str, Any]]) -> None:
        """Add to penstock.lock what the sources need and it does not have."""
        from penstock.control.locking import complete

        def profile() -> Mapping[str, Any]:
            settings = self.config.credentials.settings(self.config.target_name)
            if settings.schema_registry.embedded:
                self.connections.endpoint()  # the registry is up when the project is
            options: Mapping[str, Any] = settings.schema_registry.options
            return options

        for change in complete(sources, project_dir(self.config), profile):
            logger.info(f"penstock.lock: {change.what} schema of {change.source} ({change.part}); commit it")

    def _refuse_lost_table(self, stream: str, path: str) -> None:
        """A deployed stream whose table was dropped by hand would go on behind the rows that are gone."""
        from penstock.control.deployed import spec_of

        want = self._open_store().find_desired(stream)
        before = spec_of(want) if want is not None else None
        if want is not None and (before is None or before.has_table):
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

    # -- sources as views ---------------------------------------------------------------------------------------------
    def _register_sources(self) -> None:
        """Whatever dbt runs may read a source: each stream of the project is a view over its topic."""
        manifest = self.get_macro_resolver()
        if manifest is None:  # `dbt debug` has no project
            return
        from penstock.control.sources import register_sources

        sources = sorted(getattr(manifest, "sources", {}).values(), key=lambda source: source.unique_id)
        entries = [source.to_dict(omit_none=False) for source in sources]
        try:
            done = register_sources(self._open_store(), entries, project_dir(self.config))
        except PenstockError as error:
            raise StreamError(error) from None
        for relation in done.changed:
            logger.info(f"Source {relation} can be queried")
        for relation, problem in done.failed.items():
            logger.warning(f"Source {relation} cannot be queried: {problem}")

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
        from dbt.flags import get_flags

        settings = config.model.config
        kind = settings.get("materialized")
        if getattr(get_flags(), "WHICH", None) == "clone":
            self._keep_clone_off_streams(config.model)
        elif kind in _TABLES or kind == "view":
            self._keep_off_sources(config.model)
            self._keep_off_streams(config.model)
            self._deploy_source_tables(config.model)
            self._deploy_quarantines(config.model)
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

    def _keep_off_sources(self, model: Any) -> None:
        """What a source holds comes from its topic alone."""
        from penstock.compiler import refuse_source

        manifest = self.get_macro_resolver()
        sources = {key: source.to_dict(omit_none=False) for key, source in manifest.sources.items()} if manifest else {}
        try:
            refuse_source(f"{model.schema}.{model.alias}", sources, Location(model.original_file_path))
        except PenstockError as error:
            raise StreamError(error) from None

    def _deploy_source_tables(self, model: Any) -> None:
        """Those that a model reads which is no stream; a stream's are deployed with it."""
        from dbt.flags import get_flags

        from penstock.project.source import is_source_table, relation_of

        manifest, flags = self.get_macro_resolver(), get_flags()
        if manifest is None or not hasattr(model, "depends_on"):
            return  # a seed reads nothing
        sources = {
            key: source
            for key, source in read_by(model, manifest.nodes, manifest.sources).items()
            if is_source_table(source)
        }
        if not sources:
            return
        try:
            self.connections.endpoint()
            read = [relation_of(source) for source in sources.values()]
            full_refresh, empty = (bool(getattr(flags, name, False)) for name in ("FULL_REFRESH", "EMPTY"))
            self._source_tables.deploy(sources, read, full_refresh=full_refresh, empty=empty)
        except PenstockError as error:
            raise StreamError(error) from None

    def _deploy_quarantines(self, model: Any) -> None:
        """Those that a model shows by the macro: it may come before the first stream that fills them."""
        manifest = self.get_macro_resolver()
        if manifest is None or not hasattr(model, "depends_on"):
            return
        if not any(each.endswith(".quarantine") for each in model.depends_on.macros):
            return
        try:
            self.connections.endpoint()
            sources = read_by(model, manifest.nodes, manifest.sources)
            deploy_quarantines(self._open_store(), self.connections.paths, project_dir(self.config), sources)
        except PenstockError as error:
            raise StreamError(error) from None

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

    def _keep_clone_off_streams(self, model: Any) -> None:
        """A clone makes what is not there; what a stream writes it must not replace."""
        from dbt.flags import get_flags

        name = f"{model.schema}.{model.alias}"
        if getattr(get_flags(), "FULL_REFRESH", False) and self._open_store().find_desired(name) is not None:
            raise StreamError(CLONE_OVER_STREAM.error(f"{name} is the table of a stream."))

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
