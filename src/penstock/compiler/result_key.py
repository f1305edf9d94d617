"""The key that a query gives its rows by itself, whoever keeps them.

Rules
- GROUP BY and DISTINCT give one. A SELECT hands on that of what it reads, if a row stays one row and the key is in the
  result; so does a dynamic table that is kept by a key.
- What is not sure is no key.
- A unique_key of rows of an aggregate is of columns that stay with a group: rows that have left a key behind are not
  looked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from sqlglot import exp

from penstock.compiler.grouping import group_keys
from penstock.compiler.rows import (
    Rows,
    column_aliases,
    contains_aggregate,
    down,
    is_aggregate,
    output_columns,
    own_parts,
    sources_in,
)
from penstock.compiler.statement import Statement, relation_name
from penstock.errors import PenstockError
from penstock.errors.catalogue import MODEL_SETTING

Key = frozenset[str]  # columns, in lower case

_EXPLODING = (exp.Explode, exp.Inline, exp.Posexplode)


def result_key(statement: Statement, tables: Mapping[str, tuple[str, ...]]) -> Key | None:
    """The key of the result; `tables` are the keys of relations (schema.identifier in lower case) that have one."""
    return _of(statement, statement.tree, {name: _key(keys) for name, keys in tables.items() if keys})


def own_key(
    statement: Statement, tables: Mapping[str, tuple[str, ...]], unique_key: tuple[str, ...] | None
) -> tuple[str, ...]:
    """The model's unique_key, unless it is the key that the query gives its rows by itself."""
    if unique_key is None:
        return ()
    return () if result_key(statement, tables) == _key(unique_key) else unique_key


def key_warnings(statement: Statement, streams: Collection[str], unique_key: tuple[str, ...]) -> Iterator[str]:
    """What a unique_key makes of the rows of an aggregate; raises when it has columns that the aggregate computes."""
    computed = _computed(statement.tree, dict.fromkeys(streams, frozenset[str]()))
    if not computed:
        return
    for name in unique_key:
        if name.lower() in computed:
            raise MODEL_SETTING.error(
                f"unique_key '{name}' is computed by an aggregate: when it changes, the row of before would stay for "
                "ever.",
                at=statement.at(statement.tree),
                hint="Take the GROUP BY columns in its place; they are the key without unique_key, too.",
            )  # fmt: skip
    key = result_key(statement, {})
    if key is not None and _key(unique_key) < key:
        left = ", ".join(sorted(key - _key(unique_key)))
        yield (
            f"{statement.at(statement.tree)}: unique_key leaves out {left} of the GROUP BY columns, so of the groups "
            "with one key the table has that which changed last. Cure: leave unique_key out, or group by its columns "
            "alone."
        )


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


def _computed(node: exp.Expr | None, known: Mapping[str, Key | None]) -> Key | None:
    """The columns of an aggregate over a stream whose values it computes, under the names of this part of the query;
    None of what reads no stream. `known` are the same of relations and CTEs.
    """
    known = dict(known)
    for cte in getattr(node, "ctes", []):
        known[cte.alias.lower()] = _renamed(cte, _computed(cte.this, known))
    if isinstance(node, exp.Table):
        found = known.get(relation_name(node) or node.name.lower())
    elif isinstance(node, exp.Subquery):
        found = _computed(node.this, known)
    elif isinstance(node, exp.SetOperation):
        return _computed(node.this, known)  # no aggregate over a stream is in one
    elif isinstance(node, exp.Select):
        return _computed_by(node, known)
    else:
        return None
    return _renamed(node, found)


def _computed_by(node: exp.Select, known: Mapping[str, Key | None]) -> Key | None:
    clause = node.args.get("from_")
    joined = [clause.this, *(join.this for join in node.args.get("joins") or ())] if clause else []
    read = {each.alias_or_name.lower(): _computed(each, known) for source in joined for each in sources_in(source)}
    if all(each is None for each in read.values()):
        return None

    def below(table: str) -> Key:
        return frozenset().union(*(found or () for name, found in read.items() if table.lower() in ("", name)))

    computed: set[str] = set()
    for projection in node.expressions:
        if projection.is_star:
            computed |= below(projection.table if isinstance(projection, exp.Column) else "")
            continue
        parts = list(down(projection))
        # Each element of a list has a row of its own, which stays right while the list only grows.
        if not any(isinstance(part, _EXPLODING) for part in parts) and any(
            is_aggregate(part) or (isinstance(part, exp.Column) and part.name.lower() in below(part.table))
            for part in parts
        ):
            computed.add(projection.alias_or_name.lower())
    return frozenset(computed)


def _renamed(node: exp.Expr, found: Key | None) -> Key | None:
    """The same under the names that a CTE or a subquery gives its columns."""
    names = column_aliases(node)
    if not found or not names:
        return found
    inner = node.this.unnest()
    columns = output_columns(inner, Rows()) if isinstance(inner, exp.Select) else None
    return frozenset(new.lower() for old, new in zip(columns or (), names, strict=False) if old.lower() in found)
