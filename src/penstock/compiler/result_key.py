"""The key that a query gives its rows by itself, whoever keeps them.

Rules
- GROUP BY and DISTINCT give one. A SELECT hands on that of what it reads, if a row stays one row and the key is in the
  result; so does a dynamic table that is kept by a key.
- What is not sure is no key.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from penstock.compiler.grouping import group_keys
from penstock.compiler.rows import Rows, column_aliases, contains_aggregate, is_aggregate, output_columns, own_parts
from penstock.compiler.statement import Statement, relation_name
from penstock.errors import PenstockError

Key = frozenset[str]  # columns, in lower case

_EXPLODING = (exp.Explode, exp.Inline, exp.Posexplode)


def result_key(statement: Statement, tables: Mapping[str, tuple[str, ...]]) -> Key | None:
    """The key of the result; `tables` are the keys of relations (schema.identifier in lower case) that have one."""
    return _of(statement, statement.tree, {name: _key(keys) for name, keys in tables.items() if keys})


def _key(columns: tuple[str, ...]) -> Key:
    return frozenset(column.lower() for column in columns)


def _of(statement: Statement, node: exp.Expr | None, known: Mapping[str, Key | None]) -> Key | None:
    known = dict(known)
    for cte in getattr(node, "ctes", []):
        known[cte.alias.lower()] = None if column_aliases(cte) else _of(statement, cte.this, known)
    if node is None or column_aliases(node):
        return None
    if isinstance(node, exp.Table):
        return None if _joins(node) else known.get(relation_name(node) or node.name.lower())
    if isinstance(node, exp.Subquery):
        return None if _joins(node) else _of(statement, node.this, known)
    if isinstance(node, exp.Union) and node.args.get("distinct") and isinstance(node.this, exp.Select):
        return _all_columns(node.this)
    if (
        not isinstance(node, exp.Select)
        or _joins(node)
        or any(isinstance(part, _EXPLODING) for part in own_parts(node))
    ):
        return None
    if node.args.get("group") or any(is_aggregate(part) for part in own_parts(node)):
        try:
            return _key(group_keys(statement, node, contains_aggregate, {}, checks=True))
        except PenstockError:
            return None
    if node.args.get("distinct"):
        return _all_columns(node)
    clause = node.args.get("from_")
    return _carried(node, _of(statement, clause.this, known) if clause else None)


def _joins(node: exp.Expr) -> bool:
    """Whether a row may become several."""
    kinds = [(join.kind or "").upper() for join in node.args.get("joins") or ()]
    return bool(node.args.get("laterals")) or any(kind not in {"SEMI", "ANTI"} for kind in kinds)


def _all_columns(node: exp.Select) -> Key | None:
    columns = output_columns(node, Rows())
    return None if columns is None else _key(columns)


def _carried(node: exp.Select, key: Key | None) -> Key | None:
    """The key of what is read, under the names of this SELECT."""
    if key is None:
        return None
    names = {
        projection.unalias().name.lower(): projection.alias_or_name.lower()
        for projection in node.expressions
        if isinstance(projection.unalias(), exp.Column) and not projection.is_star
    }
    if any(projection.is_star for projection in node.expressions):
        names = {column: column for column in key} | names
    return frozenset(names[column] for column in key) if key <= names.keys() else None
