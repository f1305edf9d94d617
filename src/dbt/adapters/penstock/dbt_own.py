"""dbt's own tests and state, on streams: the columns of a unit test's inputs, and what `state:` and `docs` see."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import BaseRelation, available
from dbt.adapters.spark.column import SparkColumn

from dbt.adapters.penstock.catalogue import Catalogue
from dbt.adapters.penstock.errors import StreamError
from dbt.adapters.penstock.fixtures import Columns, FixtureColumns
from dbt.adapters.penstock.project import project_dir
from dbt.adapters.penstock.state import mark_sources
from dbt.adapters.penstock.stream_facts import StreamFacts
from penstock.errors import PenstockError
from penstock.errors.catalogue import UNIT_TEST_INPUT

if TYPE_CHECKING:
    from penstock.store import Store


class DbtOwn(Catalogue):
    """The part of the adapter that dbt's tests and comparisons ask."""

    _fixtures: FixtureColumns | None = None
    _facts: StreamFacts | None = None

    def _open_store(self) -> Store:
        raise NotImplementedError

    def set_macro_resolver(self, macro_resolver: Any) -> None:
        """dbt hands over the manifest, parsed and not yet written or compared: sources get what `state:` compares."""
        super().set_macro_resolver(macro_resolver)
        mark_sources(macro_resolver, project_dir(self.config))
        self._fixtures = self._facts = None

    @available.parse(lambda *args, **kwargs: [])  # type: ignore[untyped-decorator]
    def fixture_columns(self, relation: BaseRelation, deferred: BaseRelation | None = None) -> list[SparkColumn]:
        """The columns of what a unit test gives rows for."""
        if self._fixtures is None:
            self._fixtures = FixtureColumns(
                self.get_macro_resolver(),
                project_dir(self.config),
                described=self._columns_there,
                analysed=self._columns_of_query,
                compiled=self._sql_of,
                seeded=self._columns_of_seed,
            )
        try:
            found = self._fixtures.of(f"{relation.schema}.{relation.identifier}")
            if not found and deferred is not None:
                found = self._columns_there(f"{deferred.schema}.{deferred.identifier}")
            if not found:
                raise UNIT_TEST_INPUT.error(f"a unit test gives rows for {relation.render()}, which is not there.")
        except PenstockError as error:
            raise StreamError(error) from None
        # A given text is not cut to the length that a column has.
        return [SparkColumn(name, re.sub(r"^(var)?char\(\d+\)$", "string", kind)) for name, kind in found]

    def _columns_there(self, name: str) -> Columns:
        schema, _, identifier = name.partition(".")
        relation = self.Relation.create(schema=schema, identifier=identifier)
        if self.get_relation("", schema, identifier) is None:
            return ()
        return tuple((column, kind) for column, kind, _ in self.described(relation)[0])

    def _columns_of_query(self, sql: str) -> Columns:
        _, rows = self.execute(f"describe query {sql}", fetch=True)
        return tuple((row[0], row[1]) for row in rows)

    def _sql_of(self, node: Any) -> str:
        from copy import deepcopy

        from dbt.compilation import Compiler

        return str(
            Compiler(self.config).compile_node(deepcopy(node), self.get_macro_resolver(), {}, False).compiled_code
        )

    def _columns_of_seed(self, node: Any) -> Columns:
        from dbt_common.clients import agate_helper

        types = dict(node.config.column_types or {})
        file = Path(node.root_path or project_dir(self.config)) / node.original_file_path
        rows = agate_helper.from_csv(file, text_columns=types, delimiter=node.config.delimiter)
        return tuple(
            (str(name), str(types.get(name) or self.convert_type(rows, index)))
            for index, name in enumerate(rows.column_names)
        )

    def stream_facts(self) -> StreamFacts:
        if self._facts is None:
            self._facts = StreamFacts(self.get_macro_resolver(), self._open_store(), project_dir(self.config))
        return self._facts
