"""What a query is to a stream: does it append rows or replace them, by which key, and does it keep state.

Rules
- A part of the query is streaming if it reads a streaming relation, directly or through a CTE or subquery. Parts over
  tables alone may do anything that SQL can.
- GROUP BY, aggregates and DISTINCT over a stream replace rows (upsert). The key is the group's columns in the result;
  an aggregate without GROUP BY is one row, with the empty key; DISTINCT's key is all its columns.
- Everything else appends. A join of two streams keeps state; an aggregate may stand on an inner one.
- What Spark's streaming cannot update is an error that names the operator and its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from penstock.compiler.grouping import group_keys
from penstock.compiler.spec import OutputMode
from penstock.compiler.statement import Statement, relation_name
from penstock.errors import PenstockError
from penstock.errors.catalogue import MODEL_KEYS, MODEL_NOT_INCREMENTAL
from penstock.project.expressions import AGGREGATES


@dataclass(frozen=True)
class Shape:
    """How the stream writes its table."""

    mode: OutputMode
    keys: tuple[str, ...]
    stateful: bool


@dataclass(frozen=True)
class _Rows:
    """What is known of the rows of a part of the query."""

    streaming: bool = False
    keys: tuple[str, ...] | None = None  # of an updating part
    joined: bool = False  # a join of two streams is in it
    outer: bool = False  # and one that waits for the watermark before it emits a row
    columns: tuple[str, ...] | None = None  # None: not known

    @property
    def updating(self) -> bool:
        return self.keys is not None


def analyse(
    statement: Statement, streams: Mapping[str, tuple[str, ...] | None], unique_key: tuple[str, ...] | None = None
) -> Shape:
    """The shape of a query over streaming relations (schema.identifier in lower case -> their columns, if known)."""
    rows = _Analysis(statement, streams, checks_keys=unique_key is None).query(statement.tree, {})
    keys = unique_key if unique_key is not None else rows.keys
    if unique_key is not None and rows.columns is not None:
        known = {column.lower() for column in rows.columns}
        for key in unique_key:
            if key.lower() not in known:
                raise MODEL_KEYS.error(
                    f"unique_key '{key}' is not among the columns of the model.", at=statement.at(statement.tree),
                    hint=f"Its columns: {', '.join(rows.columns)}.",
                )  # fmt: skip
        named = {column.lower(): column for column in rows.columns}
        keys = tuple(named[key.lower()] for key in unique_key)
    mode = OutputMode.APPEND if keys is None else OutputMode.UPSERT
    return Shape(mode, keys or (), rows.updating or rows.joined)


class _Analysis:
    def __init__(
        self, statement: Statement, streams: Mapping[str, tuple[str, ...] | None], *, checks_keys: bool
    ) -> None:
        self.statement = statement
        self.streams = streams
        self.checks_keys = checks_keys

    def query(self, node: exp.Expr, above: Mapping[str, _Rows]) -> _Rows:
        ctes = dict(above)
        for cte in getattr(node, "ctes", []):
            rows = self.query(cte.this, ctes)
            names = tuple(column.name for column in cte.args["alias"].args.get("columns") or ())
            ctes[cte.alias.lower()] = _renamed(rows, names)
        if isinstance(node, exp.Subquery):
            rows = self._joins(self._source(node.this, ctes), node, ctes)
            self._ordered(node, rows)
            return rows
        if isinstance(node, exp.SetOperation):
            return self._set_operation(node, ctes)
        if isinstance(node, exp.Select):
            return self._select(node, ctes)
        return _Rows()

    # -- sources ------------------------------------------------------------------------------------------------------

    def _source(self, node: exp.Expr | None, ctes: Mapping[str, _Rows]) -> _Rows:
        if isinstance(node, exp.Table):
            name = relation_name(node)
            if name is not None and name in self.streams:
                rows = _Rows(streaming=True, columns=self.streams[name])
            elif not node.db:
                rows = ctes.get(node.name.lower(), _Rows())
            else:
                rows = _Rows()
            return self._joins(_renamed(rows, _column_aliases(node)), node, ctes)
        if isinstance(node, exp.Subquery):
            return _renamed(self.query(node, ctes), _column_aliases(node))
        if isinstance(node, exp.Query):
            return self.query(node, ctes)
        if isinstance(node, exp.Lateral) and isinstance(node.this, exp.Subquery | exp.Query):
            return self.query(node.this, ctes)
        return _Rows()

    def _joins(self, left: _Rows, node: exp.Expr, ctes: Mapping[str, _Rows]) -> _Rows:
        for join in node.args.get("joins") or ():
            right = self._source(join.this, ctes)
            if left.streaming and right.streaming:
                if left.updating or right.updating:
                    raise self._cannot("a join of a stream with an aggregate", join)
                waits = bool(join.side) or (join.kind or "").upper() in {"SEMI", "ANTI"}
                outer = left.outer or right.outer or waits
                left = _Rows(streaming=True, joined=True, outer=outer, columns=_both(left, right))
            elif left.streaming or right.streaming:
                self._outer_side(join, left)
                stream = left if left.streaming else right
                if stream.updating and (join.kind or "").upper() not in {"SEMI", "ANTI"}:
                    self._fan_out("a table joined to an aggregate", join)
                left = replace(stream, columns=_both(left, right))
            else:
                left = _Rows(columns=_both(left, right))
        for lateral in node.args.get("laterals") or ():
            if self._source(lateral, ctes).streaming:
                raise self._cannot("a lateral subquery over a stream", lateral)
            if left.updating:
                self._fan_out("a lateral view over an aggregate", lateral)
            left = replace(left, columns=None)
        return left

    def _fan_out(self, what: str, node: exp.Expr) -> None:
        """One row of an aggregate may become several here, and then its key no longer tells them apart."""
        if self.checks_keys:
            raise MODEL_KEYS.error(
                f"{what} may give several rows for one key.", at=self.statement.at(node), hint="Set unique_key."
            )

    def _outer_side(self, join: exp.Join, left: _Rows) -> None:
        """A table may be joined to a stream, but the stream must be on the side that keeps all its rows."""
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        kept_left = side == "LEFT" or kind in {"SEMI", "ANTI"}
        if side == "FULL" or (kept_left and not left.streaming) or (side == "RIGHT" and left.streaming):
            name = " ".join(word for word in (side, kind) if word and word != "OUTER").lower()
            raise self._cannot(f"a {name} join that keeps the rows of a table beside a stream", join)

    # -- operators ----------------------------------------------------------------------------------------------------

    def _set_operation(self, node: exp.SetOperation, ctes: Mapping[str, _Rows]) -> _Rows:
        left, right = self.query(node.this, ctes), self.query(node.expression, ctes)
        streaming = left.streaming or right.streaming
        if not streaming:
            return _Rows(columns=left.columns)
        if not isinstance(node, exp.Union):
            raise self._cannot(type(node).__name__.upper(), node)
        self._ordered(node, _Rows(streaming=True))
        if left.streaming != right.streaming:
            raise self._cannot("a UNION of a stream and a table", node)
        if left.updating or right.updating:
            raise self._cannot("a UNION with an aggregate", node)
        joined, outer = left.joined or right.joined, left.outer or right.outer
        rows = _Rows(streaming=True, joined=joined, outer=outer, columns=left.columns)
        return self._distinct(rows, node) if node.args.get("distinct") else rows

    def _select(self, node: exp.Select, ctes: Mapping[str, _Rows]) -> _Rows:
        clause = node.args.get("from_") or node.args.get("from")
        rows = self._joins(self._source(clause.this if clause else None, ctes), node, ctes)
        self._subqueries(node, ctes)
        columns = _output_columns(node, rows)
        if not rows.streaming:
            return _Rows(columns=columns)
        self._ordered(node, rows)
        for part in own_parts(node):
            if isinstance(part, exp.Window):
                raise self._cannot("a window function (OVER)", part)
        aggregates = [part for part in own_parts(node) if _is_aggregate(part)]
        group = node.args.get("group")
        if aggregates or group:
            rows = self._aggregate(node, rows, aggregates)
        rows = replace(rows, columns=columns)
        if node.args.get("distinct"):
            return self._distinct(rows, node)
        if rows.updating and not aggregates and not group:
            return replace(rows, keys=self._carried(node, rows))
        return rows

    def _aggregate(self, node: exp.Select, rows: _Rows, aggregates: list[exp.Expr]) -> _Rows:
        here = node.args.get("group") or aggregates[0]
        if rows.updating:
            raise self._cannot("an aggregate over an aggregate", here)
        if rows.outer:
            raise self._cannot("an aggregate over an outer join of two streams", here)
        for aggregate in aggregates:
            if any(isinstance(part, exp.Distinct) for part in own_parts(aggregate)):
                raise self._cannot("an aggregate with DISTINCT", aggregate, hint="Use approx_count_distinct(...).")
        keys = group_keys(self.statement, node, _contains_aggregate, checks=self.checks_keys)
        return replace(rows, keys=keys)

    def _distinct(self, rows: _Rows, node: exp.Expr) -> _Rows:
        if rows.updating or rows.outer:
            below = "an aggregate" if rows.updating else "an outer join of two streams"
            raise self._cannot(f"DISTINCT over {below}", node)
        if rows.columns is None and self.checks_keys:
            raise MODEL_KEYS.error(
                "the columns of DISTINCT are not known.", at=self.statement.at(node),
                hint="Name each column instead of '*', or set unique_key.",
            )  # fmt: skip
        return replace(rows, keys=rows.columns or ())

    def _ordered(self, node: exp.Expr, rows: _Rows) -> None:
        if not rows.streaming:
            return
        for argument, name in (("order", "ORDER BY"), ("sort", "SORT BY"), ("cluster", "CLUSTER BY")):
            if node.args.get(argument):
                raise self._cannot(name, node.args[argument])
        limit = node.args.get("limit")
        if limit is not None and not _is_zero(limit.expression):
            raise self._cannot("LIMIT", limit)
        if node.args.get("offset"):
            raise self._cannot("OFFSET", node.args["offset"])

    def _subqueries(self, node: exp.Select, ctes: Mapping[str, _Rows]) -> None:
        """Subqueries in expressions may be anything over tables, and nothing over a stream."""
        for part in own_parts(node):
            inner = part if isinstance(part, exp.Subquery) else _exists_query(part)
            if inner is not None and self.query(inner, ctes).streaming:
                raise self._cannot("a subquery over a stream", part, hint="Write it as a join.")

    def _carried(self, node: exp.Select, rows: _Rows) -> tuple[str, ...]:
        """The key of an aggregate below, under the names of this SELECT."""
        names = {
            projection.unalias().name.lower(): projection.alias_or_name
            for projection in reversed(node.expressions)
            if isinstance(projection.unalias(), exp.Column) and not projection.is_star
        }
        star = any(projection.is_star for projection in node.expressions)
        carried: list[str] = []
        for key in rows.keys or ():
            if key.lower() in names:
                carried.append(names[key.lower()])
            elif star:
                carried.append(key)
            elif self.checks_keys:
                raise MODEL_KEYS.error(f"the key '{key}' is not in the result.", at=self.statement.at(node))
        return tuple(carried)

    def _cannot(self, operator: str, node: exp.Expr, hint: str | None = None) -> PenstockError:
        return MODEL_NOT_INCREMENTAL.error(
            f"{operator} cannot be kept up to date by a stream.", at=self.statement.at(node), hint=hint
        )


def own_parts(node: exp.Expr) -> Iterator[exp.Expr]:
    """The expressions of a SELECT itself: not those of its sources, CTEs and subqueries."""
    for name, value in node.args.items():
        if name in {"from", "from_", "with", "with_", "laterals"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, exp.Join):
                for part in (child.args.get("on"), *(child.args.get("using") or ())):
                    if isinstance(part, exp.Expr):
                        yield from _down(part)
            elif isinstance(child, exp.Expr):
                yield from _down(child)


def _down(node: exp.Expr) -> Iterator[exp.Expr]:
    yield node
    if not isinstance(node, exp.Query):
        yield from own_parts(node)


def _is_aggregate(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in AGGREGATES
    return isinstance(node, exp.AggFunc) and not isinstance(node.parent, exp.Window)


def _contains_aggregate(node: exp.Expr) -> bool:
    return any(_is_aggregate(part) for part in _down(node))


def _exists_query(node: exp.Expr) -> exp.Expr | None:
    return node.this if isinstance(node, exp.Exists) and isinstance(node.this, exp.Query) else None


def _output_columns(node: exp.Select, rows: _Rows) -> tuple[str, ...] | None:
    names: list[str] = []
    for projection in node.expressions:
        if projection.is_star:
            plain = isinstance(projection, exp.Star) and not any(projection.args.values())
            if not plain or rows.columns is None:
                return None
            names.extend(rows.columns)
        elif not projection.alias_or_name:
            return None
        else:
            names.append(projection.alias_or_name)
    return tuple(names)


def _renamed(rows: _Rows, names: tuple[str, ...]) -> _Rows:
    if not names:
        return rows
    renames = dict(zip((column.lower() for column in rows.columns or ()), names, strict=False))
    keys = None if rows.keys is None else tuple(renames.get(key.lower(), key) for key in rows.keys)
    return replace(rows, columns=names, keys=keys)


def _column_aliases(node: exp.Expr) -> tuple[str, ...]:
    alias = node.args.get("alias")
    return tuple(column.name for column in alias.args.get("columns") or ()) if isinstance(alias, exp.TableAlias) else ()


def _both(left: _Rows, right: _Rows) -> tuple[str, ...] | None:
    if left.columns is None or right.columns is None:
        return None
    return left.columns + right.columns


def _is_zero(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.Literal) and node.name == "0"
