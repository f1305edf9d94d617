"""The columns of what a unit test gives rows for, without a topic and without a deployed table.

Rules
- A stream has the columns that its source declares (with the schemas of penstock.lock), never those of a topic.
- A dynamic table has the columns of its query as the project has it now, not those of the version that is deployed:
  Spark analyses the query with empty relations in place of what it reads. So has any other model that is not built yet.
- Whatever else is there has the columns that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import RLock
from typing import Any

from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import UNIT_TEST_INPUT

Columns = tuple[tuple[str, str], ...]  # name, type
_MADE = ("model", "seed", "snapshot")


class FixtureColumns:
    """The columns of a project's relations (schema.identifier), each looked up once in a run of dbt."""

    def __init__(
        self,
        manifest: Any,
        project: Path,
        *,
        described: Callable[[str], Columns],  # of a relation of the catalog; none when it is not there
        analysed: Callable[[str], Columns],  # of a query
        compiled: Callable[[Any], str],  # SQL of a model
        seeded: Callable[[Any], Columns],  # of a seed's file
    ) -> None:
        self._project = project
        self._described, self._analysed, self._compiled, self._seeded = described, analysed, compiled, seeded
        self._entries = dict(_relations(manifest))
        self._known: dict[str, Columns] = {}
        self._lock = RLock()

    def of(self, relation: str) -> Columns:
        """Name and type of each column; none when nobody knows."""
        name = relation.lower()
        with self._lock:  # dbt runs its tests in threads
            if name not in self._known:
                self._known[name] = self._find(name)
            return self._known[name]

    def _find(self, name: str) -> Columns:
        entry = self._entries.get(name)
        if entry is None:
            return self._described(name)
        if entry.resource_type == "source":
            return self._of_source(name, entry)
        if entry.config.materialized == "dynamic_table":
            return self._of_query(name, entry)
        found = self._described(name)
        if found or entry.resource_type == "snapshot":
            return found
        return self._seeded(entry) if entry.resource_type == "seed" else self._of_query(name, entry)

    def _of_source(self, name: str, entry: Any) -> Columns:
        from penstock.project.source import is_stream, read_source

        source: Mapping[str, Any] = entry.to_dict(omit_none=False)
        if not is_stream(source):
            return self._described(name)
        return tuple((column.name, column.type.ddl) for column in read_source(source, self._project).columns)

    def _of_query(self, name: str, entry: Any) -> Columns:
        from dbt_common.exceptions import DbtRuntimeError

        from penstock.compiler.statement import parse, relations, rewrite

        self._known[name] = ()  # a model that reads itself
        try:
            statement = parse(self._compiled(entry), entry.original_file_path, ())
            columns = {each: self.of(each) for each in relations(statement)}
            empty = {each: _empty(found) for each, found in columns.items() if found}
            return self._analysed(rewrite(statement, empty))
        except (DbtRuntimeError, PenstockError) as problem:
            message = problem.message if isinstance(problem, PenstockError) else str(problem.msg)
            raise UNIT_TEST_INPUT.error(
                f"a unit test gives rows for {name}, whose columns cannot be found out: {message.splitlines()[0]}",
                at=Location(entry.original_file_path),
            ) from None


def _relations(manifest: Any) -> Iterator[tuple[str, Any]]:
    for source in manifest.sources.values():
        yield f"{source.schema}.{source.identifier}".lower(), source
    for node in manifest.nodes.values():
        if node.resource_type in _MADE:
            yield f"{node.schema}.{node.alias}".lower(), node


def _empty(columns: Columns) -> str:
    """A relation of these columns without rows, as it stands in a FROM."""
    from penstock.project.sparktypes import quoted

    nulls = ", ".join(f"cast(null as {kind}) as {quoted(name)}" for name, kind in columns)
    return f"(select {nulls} where false)"
