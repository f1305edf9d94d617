"""What is in the engine's catalog, as dbt asks for it: relations, columns, comments, and what `dbt docs` shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import BaseRelation, available
from dbt.adapters.contracts.relation import RelationType
from dbt.adapters.spark.column import SparkColumn
from dbt.adapters.spark.impl import LIST_RELATIONS_MACRO_NAME, SCHEMA_NOT_FOUND_MESSAGES, SparkAdapter
from dbt_common.exceptions import DbtRuntimeError

if TYPE_CHECKING:
    from dbt.adapters.penstock.stream_facts import StreamFacts


class Catalogue(SparkAdapter):  # type: ignore[misc]
    """The part of the adapter that reads the catalog."""

    def stream_facts(self) -> StreamFacts:
        """What is known of the project's streams."""
        raise NotImplementedError

    @available.parse_list  # type: ignore[untyped-decorator]
    def get_columns_in_relation(self, relation: BaseRelation) -> list[SparkColumn]:
        """Of the table itself, also with --empty, where a relation stands for a query in SQL."""
        table = relation if relation.limit is None else relation.replace(limit=None)
        found: list[SparkColumn] = super().get_columns_in_relation(table)
        return found

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

        'missing' are described columns that it does not have; a quoted name is one with its own capitals.

        A change of a comment is a commit, and a commit can make a stream's batch start over: none without need.
        """
        columns, details = self.described(relation)
        has = {name.lower(): (name, comment) for name, _, comment in columns}
        wanted: dict[str, str] = {}
        missing: list[str] = []
        for name, column in model["columns"].items():
            there, comment = has.get(name.lower(), (None, ""))
            if there is None or (column.get("quote") and there != name):
                missing.append(name)
            elif column["description"] != comment:
                wanted[there] = column["description"]
        description = model.get("description") or ""
        return {
            "relation": description if description != details.get("Comment", "") else None,
            "columns": wanted,
            "missing": missing,
        }

    def _get_columns_for_catalog(self, relation: BaseRelation) -> Iterable[dict[str, Any]]:
        columns, details = self.described(relation)
        kind_of_stream, facts = self.stream_facts().of(f"{relation.schema}.{relation.identifier}")
        stats = {**SparkColumn.convert_table_stats(details.get("Statistics")), **facts}
        for index, (name, kind, comment) in enumerate(columns, start=1):
            yield {
                "table_database": None,
                "table_schema": relation.schema,
                "table_name": relation.identifier,
                "table_type": kind_of_stream or str(relation.type),
                "table_comment": details.get("Comment") or None,
                "table_owner": details.get("Owner", ""),
                "column_name": name,
                "column_index": index,
                "column_type": kind,
                "column_comment": comment or None,
                **stats,
            }

    def described(self, relation: BaseRelation) -> tuple[list[tuple[str, str, str]], dict[str, str]]:
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
