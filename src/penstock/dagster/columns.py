"""Where a column of a model comes from. Pure: SQL and the columns of its inputs in, lineage out.

Rules
- The SQL is the compiled one, with relations by their names; inputs are those that the manifest lists.
- A query that sqlglot cannot follow has no lineage; that is never a failure of the deployment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, lineage
from sqlglot.optimizer.qualify import qualify

DIALECT = "spark"
Lineage = dict[str, list[tuple[str, str]]]  # column -> (relation, column) of what it is made from


def column_lineage(sql: str, inputs: Mapping[str, Sequence[str]]) -> Lineage:
    """For each column of the query, the columns of the inputs (relation -> columns) that it is made from."""
    tables: dict[str, dict[str, dict[str, str]]] = {}
    for relation, columns in inputs.items():
        database, _, table = relation.lower().rpartition(".")
        tables.setdefault(database, {})[table] = {name.lower(): "string" for name in columns}
    schema: dict[str, object] = dict(tables)
    try:
        tree = qualify(parse_one(sql, dialect=DIALECT), schema=schema, dialect=DIALECT, validate_qualify_columns=False)
        names = list(tree.named_selects) if isinstance(tree, exp.Query) else []
        return {name: _leaves(lineage(name, tree, schema=schema, dialect=DIALECT), inputs) for name in names}
    except SqlglotError:
        return {}


def _leaves(root: Node, inputs: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    known = {relation.lower(): relation for relation in inputs}
    found = set()
    for node in root.walk():
        if node.downstream or not isinstance(node.expression, exp.Table):
            continue
        table = node.expression
        relation = known.get(".".join(part for part in (table.db, table.name) if part).lower())
        if relation is not None:
            found.add((relation, node.name.rpartition(".")[2].strip('`"')))
    return sorted(found)
