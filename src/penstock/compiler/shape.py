"""What a query is to a stream: does it append rows or replace them, by which key, and does it keep state.

Rules
- A part of the query is streaming if it reads a streaming relation, directly or through a CTE or subquery. Parts over
  tables alone may do anything that SQL can.
- GROUP BY, aggregates and DISTINCT over a stream replace rows (upsert). The key is the group's columns in the result;
  an aggregate without GROUP BY is one row, with the empty key; DISTINCT's key is all its columns.
- Everything else appends. A join of two streams keeps state; an aggregate may stand on an inner one.
- A dynamic table that replaces its rows, joined to a stream of rows that are appended, is a table to it: it is looked
  up as it stands at each batch, as any other table is.
- With `emit: final` a windowed aggregate appends: each window once, when the watermark has passed it. A session window
  is only ever final, because its key changes as it grows. All of such a query is final: every GROUP BY and DISTINCT in
  it has to have event time among its columns, or the watermark would never pass its groups.
- A `unique_key` makes an upsert of rows that are appended. Of a join of two streams they are so all the same: Spark
  gives them in append mode alone.
- What Spark's streaming cannot update is an error that names the operator and its line.
- State that grows without end is no error; it is a warning with the cure. So is a condition that asks the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlglot import exp

from penstock.compiler.bounds import freed, has_equality, keeps_rows
from penstock.compiler.clock import clock_warnings
from penstock.compiler.grouping import group_keys, grouped_by, is_windowed, session_windows
from penstock.compiler.rows import (
    SESSION,
    Rows,
    below,
    both,
    carries_event_time,
    column_aliases,
    columns_named,
    contains_aggregate,
    exists_query,
    is_aggregate,
    is_zero,
    output_columns,
    own_parts,
    plain,
    renamed,
    selected,
    window_function,
)
from penstock.compiler.spec import OutputMode
from penstock.compiler.statement import Statement, relation_name
from penstock.errors import PenstockError
from penstock.errors.catalogue import MODEL_KEYS, MODEL_NOT_INCREMENTAL, MODEL_SETTING, MODEL_UPDATING_INPUT

Emit = Literal["changes", "final"]


@dataclass(frozen=True)
class Source:
    """A relation that is read as a stream."""

    columns: tuple[str, ...] | None = None  # None: not known
    watermark: str | None = None  # the column of event time
    rows: Literal["append", "upsert", "replace"] = "append"
    keys: tuple[str, ...] = ()  # of an upsert


@dataclass(frozen=True)
class Shape:
    """How the stream writes its table."""

    mode: OutputMode
    keys: tuple[str, ...]
    stateful: bool
    changed: tuple[str, ...] | None = None  # the table follows changed rows: their key, in the order of `keys`
    aggregate: exp.Select | None = field(default=None, compare=False)  # that gives them, unless an input does
    warnings: tuple[str, ...] = field(default=(), compare=False)
    columns: tuple[str, ...] | None = field(default=None, compare=False)  # of the result, where the SQL names them
    looked_up: frozenset[str] = frozenset()  # dynamic tables that are read as they stand
    joined: bool = False  # an upsert of the rows of a join of two streams, which never change


def analyse(
    statement: Statement,
    streams: Mapping[str, Source],
    unique_key: tuple[str, ...] | None = None,
    *,
    emit: Emit | None = None,
    deduplicate_by: tuple[str, ...] = (),
) -> Shape:
    """The shape of a query over streaming relations (schema.identifier in lower case -> what is known of them)."""
    analysis = _Analysis(statement, streams, emit=emit, checks_keys=unique_key is None)
    rows = analysis.query(statement.tree, {})
    analysis.streamed(rows)
    if emit == "final" and not analysis.windows:
        raise MODEL_SETTING.error(
            "'emit: final' needs a GROUP BY with window(...) or session_window(...).",
            at=statement.at(statement.tree), hint="Leave 'emit' out: rows of other queries are written as they come.",
        )  # fmt: skip
    analysis.closed()
    if unique_key is not None and analysis.final and analysis.windows:
        raise MODEL_SETTING.error(
            "windows are written once, when they are over, and 'unique_key' would have them replaced.",
            at=statement.at(statement.tree),
            hint="Leave 'unique_key' out; a model above this one may keep the newest row of a key.",
        )  # fmt: skip
    keys = unique_key if unique_key is not None else rows.keys
    if unique_key is not None and rows.columns is not None:
        keys = columns_named(statement, "unique_key", unique_key, rows.columns)
    if deduplicate_by:
        analysis.deduplicated(rows, keyed=unique_key is not None)
    mode = OutputMode.APPEND if keys is None else OutputMode.UPSERT
    stateful = (rows.updating and not rows.changes) or rows.joined or bool(deduplicate_by)
    warnings, looked_up = tuple(dict.fromkeys(analysis.warnings)), frozenset(analysis.looked_up)
    # Where a table is joined to several rows of it, unique_key says which; rows of a group are not taken back then.
    if rows.changes or rows.filtered or (rows.joined_table and unique_key is None):
        keys = analysis.followed(rows, keys or ())
        above = None if rows.changes else analysis.aggregate
        return Shape(mode, keys, stateful, rows.origin, above, warnings, rows.columns, looked_up)
    joined = mode is OutputMode.UPSERT and rows.joined and not rows.updating
    return Shape(
        mode, keys or (), stateful, warnings=warnings, columns=rows.columns, looked_up=looked_up, joined=joined
    )


class _Analysis:
    def __init__(
        self, statement: Statement, streams: Mapping[str, Source], *, emit: Emit | None, checks_keys: bool
    ) -> None:
        self.statement = statement
        self.streams = streams
        self.checks_keys = checks_keys
        self.watermarked = any(each.watermark for each in streams.values())
        sessions = emit is None and self.watermarked and session_windows(statement.tree)
        self.final = emit == "final" or sessions
        self.asked_final = emit == "final"
        self.aggregate: exp.Select | None = None
        self.windows = False  # whether a window was grouped by
        self.open: list[tuple[str, exp.Expr]] = []  # what gives groups that no watermark passes, where all is final
        self.looked_up: set[str] = set()
        self.warnings: list[str] = []

    def query(self, node: exp.Expr, above: Mapping[str, Rows]) -> Rows:
        ctes = dict(above)
        for cte in getattr(node, "ctes", []):
            rows = self.query(cte.this, ctes)
            names = tuple(column.name for column in cte.args["alias"].args.get("columns") or ())
            ctes[cte.alias.lower()] = renamed(rows, names)
        if isinstance(node, exp.Subquery):
            rows = self._joins(self._source(node.this, ctes), node, ctes)
            self._ordered(node, rows)
            return rows
        if isinstance(node, exp.SetOperation):
            return self._set_operation(node, ctes)
        if isinstance(node, exp.Select):
            return self._select(node, ctes)
        return Rows()

    # -- sources ------------------------------------------------------------------------------------------------------

    def _source(self, node: exp.Expr | None, ctes: Mapping[str, Rows]) -> Rows:
        if isinstance(node, exp.Table):
            name = relation_name(node)
            if name is not None and name in self.streams:
                rows = self._stream(name, self.streams[name], node)
            elif not node.db:
                rows = ctes.get(node.name.lower(), Rows())
            else:
                rows = Rows()
            return self._joins(renamed(rows, column_aliases(node)), node, ctes)
        if isinstance(node, exp.TableAlias):  # what is read after `|> as name`
            return ctes.get(node.name.lower(), Rows())
        if isinstance(node, exp.Subquery):
            return renamed(self.query(node, ctes), column_aliases(node))
        if isinstance(node, exp.Query):
            return self.query(node, ctes)
        if isinstance(node, exp.Lateral) and isinstance(node.this, exp.Subquery | exp.Query):
            return self.query(node.this, ctes)
        return Rows()

    def _stream(self, name: str, source: Source, node: exp.Table) -> Rows:
        if source.rows != "append":
            whole = node if source.rows == "replace" else None
            return Rows(
                streaming=True, keys=source.keys, origin=source.keys, changes=True, tables=frozenset({name}),
                whole=whole, columns=source.columns,
            )  # fmt: skip
        event = frozenset({source.watermark.lower()}) if source.watermark else frozenset()
        return Rows(streaming=True, columns=source.columns, event=event)

    def _joins(self, left: Rows, node: exp.Expr, ctes: Mapping[str, Rows]) -> Rows:
        left = self._turned(left, node)
        for join in node.args.get("joins") or ():
            right = self._source(join.this, ctes)
            if left.streaming and not left.updating and right.changes:
                self.looked_up |= right.tables
                right = Rows(columns=right.columns)
            if left.streaming and right.streaming:
                self._kept(left)
                if left.updating or right.updating:
                    raise self._cannot(f"a join of a stream with {below(left, right)}", join)
                where = node.args["where"].this if node.args.get("where") else None
                if (join.kind or "").upper() == "ANTI":
                    raise self._cannot(f"a {_join_name(join)} join of two streams", join)
                if not has_equality(join, where):
                    raise self._cannot("a join of two streams without an equality", join)
                outer = left.outer or right.outer or keeps_rows(join)
                self._bounded(left, right, where, join)
                left = Rows(
                    streaming=True, joined=True, outer=outer, columns=both(left, right),
                    event=left.event | right.event, windows={**left.windows, **right.windows},
                )  # fmt: skip
            elif left.streaming or right.streaming:
                self._outer_side(join, left)
                stream = left if left.streaming else right
                self._kept(stream)
                if stream.updating and (join.kind or "").upper() not in {"SEMI", "ANTI"}:
                    self._fan_out(f"a table joined to {below(stream)}", join)
                keeps = bool(join.side) and (join.kind or "").upper() not in {"SEMI", "ANTI"}  # all rows of the stream
                lost = stream.joined_table or (stream.updating and not stream.steady and not keeps)
                left = replace(stream, columns=both(left, right), joined_table=lost)
            else:
                left = Rows(columns=both(left, right))
        for lateral in node.args.get("laterals") or ():
            if self._source(lateral, ctes).streaming:
                raise self._cannot("a lateral subquery over a stream", lateral)
            if left.updating:
                self._fan_out(f"a lateral view over {below(left)}", lateral)
            left = replace(left, columns=None)
        return left

    def _turned(self, rows: Rows, node: exp.Expr) -> Rows:
        """What is made of a relation where it is read: PIVOT, UNPIVOT, TABLESAMPLE."""
        for pivot in node.args.get("pivots") or ():
            turns_back = bool(pivot.args.get("unpivot"))
            if rows.streaming and not turns_back:
                raise self._cannot("PIVOT", pivot)
            if rows.updating:
                self._fan_out(f"UNPIVOT over {below(rows)}", pivot)
            rows = replace(rows, columns=None)
        if rows.streaming and node.args.get("sample"):
            raise self._cannot("TABLESAMPLE", node)
        return rows

    def streamed(self, rows: Rows) -> None:
        """Refuse a result that is made of changes which cannot be had, or of a table that is looked up elsewhere."""
        self._kept(rows)
        if both_ways := sorted(rows.tables & self.looked_up):
            raise self._cannot(f"{both_ways[0]}, joined to what follows its changes,", self.statement.tree)

    def _kept(self, *parts: Rows) -> None:
        """Refuse rows of a table that is recomputed as a whole: nobody tells which of them have changed."""
        for rows in parts:
            if rows.whole is not None:
                raise self._updating(rows.whole, f"{rows.whole.db}.{rows.whole.name} is recomputed as a whole.")

    def _updating(self, node: exp.Expr, message: str) -> PenstockError:
        return MODEL_UPDATING_INPUT.error(message, at=self.statement.at(node))

    def followed(self, rows: Rows, keys: tuple[str, ...]) -> tuple[str, ...]:
        """The key of a table that follows changed rows: one row of the table for one of them."""
        carried = rows.keys or ()
        if len(carried) != len(rows.origin) or {key.lower() for key in keys} != {key.lower() for key in carried}:
            where, below = self.statement.tree, "the updating input" if rows.changes else "the aggregate"
            raise self._cannot(f"a unique_key other than the key of {below} below a filter", where)
        return carried

    def _bounded(self, left: Rows, right: Rows, where: exp.Expr | None, join: exp.Join) -> None:
        """Refuse a join that would wait for ever to tell that a row meets no other, and warn of one that keeps rows."""
        bounds, side = freed(join, where, left, right), (join.side or "").upper()
        if bounds.both:
            return
        # Spark asks one side alone of a full join; rows of the other that meet none would never be written.
        never = {"RIGHT": not bounds.right, "FULL": True}.get(side, keeps_rows(join) and not bounds.left)
        if never:
            raise self._cannot(
                f"a {_join_name(join)} join of two streams without a bound in time", join,
                hint="Give both inputs a 'watermark:' and bound the join in its ON, such as "
                "'b.ts between a.ts and a.ts + interval 10 minutes'.",
            )  # fmt: skip
        if not left.event or not right.event:
            self._warn(
                join, "one side of the join has no watermark on any of its columns, so all its rows are kept as state "
                "for ever",
                "give both inputs a 'watermark:', keep its column, and bound the join in time, such as "
                "'b.ts between a.ts and a.ts + interval 10 minutes'",
            )  # fmt: skip
        else:
            self._warn(
                join, "the join has no bound in time in both directions, on the columns of event time themselves, so "
                "rows are kept as state for ever",
                "add a condition such as 'b.ts between a.ts and a.ts + interval 10 minutes'",
            )  # fmt: skip

    def deduplicated(self, rows: Rows, *, keyed: bool) -> None:
        """What `deduplicate_by` needs of the result's rows."""
        if keyed:
            raise MODEL_SETTING.error(
                "'deduplicate_by' and 'unique_key' do not go together: telling rows apart loses the order in which the "
                "newest of a key is known.",
                at=self.statement.at(self.statement.tree), hint="Deduplicate in a model below this one.",
            )  # fmt: skip
        if rows.updating:
            raise MODEL_SETTING.error(
                "'deduplicate_by' is for rows that are appended, and an aggregate replaces its rows.",
                at=self.statement.at(self.statement.tree), hint="Deduplicate in a model below this one.",
            )  # fmt: skip
        if self.watermarked and not rows.event:
            names = sorted(each.watermark for each in self.streams.values() if each.watermark)
            raise MODEL_SETTING.error(
                f"'deduplicate_by' forgets a key when the watermark has passed it, and {' or '.join(names)}, which "
                "carries the watermark, is not in the result.",
                at=self.statement.at(self.statement.tree), hint=f"Select {names[0]}, too.",
            )  # fmt: skip
        if not self.watermarked:
            self._warn(
                self.statement.tree, "'deduplicate_by' without a watermark remembers every key for ever",
                "give the input a 'watermark:'; keys are then forgotten when it has passed them",
            )  # fmt: skip

    def _warn(self, node: exp.Expr, what: str, cure: str) -> None:
        self.warnings.append(f"{self.statement.at(node)}: {what}. Cure: {cure}.")

    def _fan_out(self, what: str, node: exp.Expr) -> None:
        """One row of an aggregate may become several here, and then its key no longer tells them apart."""
        if self.checks_keys:
            raise MODEL_KEYS.error(
                f"{what} may give several rows for one key.", at=self.statement.at(node), hint="Set unique_key."
            )

    def _outer_side(self, join: exp.Join, left: Rows) -> None:
        """A table may be joined to a stream, but the stream must be on the side that keeps all its rows."""
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        kept_left = side == "LEFT" or kind in {"SEMI", "ANTI"}
        if side == "FULL" or (kept_left and not left.streaming) or (side == "RIGHT" and left.streaming):
            raise self._cannot(f"a {_join_name(join)} join that keeps the rows of a table beside a stream", join)

    # -- operators ----------------------------------------------------------------------------------------------------

    def _set_operation(self, node: exp.SetOperation, ctes: Mapping[str, Rows]) -> Rows:
        left, right = self.query(node.this, ctes), self.query(node.expression, ctes)
        streaming = left.streaming or right.streaming
        if not streaming:
            return Rows(columns=left.columns)
        if not isinstance(node, exp.Union):
            raise self._cannot(type(node).__name__.upper(), node)
        self._ordered(node, Rows(streaming=True))
        if left.streaming != right.streaming:
            raise self._cannot("a UNION of a stream and a table", node)
        self._kept(left, right)
        if left.updating or right.updating:
            raise self._cannot(f"a UNION with {below(left, right)}", node)
        joined, outer = left.joined or right.joined, left.outer or right.outer
        named = renamed(right, left.columns or ())  # columns meet by their place
        event = left.event & named.event
        # The start of a window may be that of another one, of another length; a session stays one to Spark.
        windows = {name: each for name, each in {**named.windows, **left.windows}.items() if each == SESSION}
        rows = Rows(streaming=True, joined=joined, outer=outer, columns=left.columns, event=event, windows=windows)
        return self._distinct(rows, node) if node.args.get("distinct") else rows

    def _select(self, node: exp.Select, ctes: Mapping[str, Rows]) -> Rows:
        clause = node.args.get("from_") or node.args.get("from")
        rows = self._joins(self._source(clause.this if clause else None, ctes), node, ctes)
        self._subqueries(node, ctes)
        columns = output_columns(node, rows)
        if not rows.streaming:
            return Rows(columns=columns)
        self.warnings += clock_warnings(self.statement, full=False, node=node)
        self._ordered(node, rows)
        for part in own_parts(node):
            if isinstance(part, exp.Window):
                raise self._cannot("a window function (OVER)", part)
        aggregates = [part for part in own_parts(node) if is_aggregate(part)]
        group = node.args.get("group")
        if aggregates or group:
            rows = self._aggregate(node, rows, aggregates)
        rows = replace(selected(node, rows), columns=columns)
        if node.args.get("distinct"):
            return self._distinct(rows, node)
        if rows.updating and not aggregates and not group:
            if any(isinstance(part, exp.Explode | exp.Inline | exp.Posexplode) for part in own_parts(node)):
                self._fan_out(f"explode over {below(rows)}", node)
            filtered = rows.filtered or (bool(node.args.get("where")) and not rows.steady)
            return replace(rows, keys=self._carried(node, rows), filtered=filtered)
        return rows

    def _aggregate(self, node: exp.Select, rows: Rows, aggregates: list[exp.Expr]) -> Rows:
        group = node.args.get("group")
        here = group if group is not None and not group.args.get("all") else [*aggregates, node][0]
        self._kept(rows)
        if rows.changes:
            raise self._updating(here, "an aggregate over a table that replaces its rows cannot follow its changes.")
        if rows.updating:
            raise self._cannot("an aggregate over an aggregate", here)
        if rows.outer and not self.final:
            raise self._cannot("an aggregate over an outer join of two streams", here)
        for aggregate in aggregates:
            if any(isinstance(part, exp.Distinct) for part in own_parts(aggregate)):
                raise self._cannot("an aggregate with DISTINCT", aggregate, hint="Use approx_count_distinct(...).")
        rows = self._windowed(rows, grouped_by(node, contains_aggregate), here)
        if self.final:
            return replace(rows, joined=True, outer=False)
        keys = group_keys(self.statement, node, contains_aggregate, rows.windows, checks=self.checks_keys)
        self.aggregate = node
        return replace(rows, keys=keys, origin=keys, filtered=bool(node.args.get("having")))

    def _windowed(self, rows: Rows, groups: list[exp.Expr], here: exp.Expr) -> Rows:
        """What becomes of the event time where a SELECT groups by windows."""
        timed = [each for each in groups if carries_event_time(each, rows.event)]
        made = {plain(each.name): name for each in groups if (name := window_function(each, rows.windows))}
        sessions = [each for each in groups if window_function(each, rows.windows) == SESSION]
        if sessions and not self.final:
            raise self._cannot(
                "session_window(...), whose key changes as the session grows,", sessions[0],
                hint="Leave 'emit' out: a session is written when it is over." if self.watermarked else
                "With a 'watermark:' on the input a session is written when it is over.",
            )  # fmt: skip
        # Spark leaves constants out, and refuses sessions of all rows together as it plans the first batch.
        if sessions and all(each in sessions or not each.find(exp.Column) for each in groups):
            raise self._cannot("session_window(...) as the only GROUP BY column", here)
        if is_windowed(groups, rows.windows):
            self.windows = True
            if not timed:
                self._never_closed(rows, here, sessions=bool(sessions))
        elif self.final and not timed:
            self.open.append(("an aggregate", here))
        # Spark calls the column of a group's window after the function.
        calls = {plain(each.name) for each in timed if isinstance(each, exp.Anonymous)}
        return replace(rows, event=rows.event | calls, windows={**rows.windows, **made})

    def closed(self) -> None:
        """Refuse, where all is final, groups that are never so: no watermark passes them."""
        for what, node in self.open:
            raise self._cannot(
                f"{what} of groups without event time, beside {'windows' if self.asked_final else 'sessions'} that are "
                "written when they are over,", node,
                hint="Have a column of event time or a window of it among them, or do it in a model above this one.",
            )  # fmt: skip

    def _never_closed(self, rows: Rows, here: exp.Expr, *, sessions: bool) -> None:
        """No watermark passes the windows of a GROUP BY: there is none, or it is another column's."""
        event = " or ".join(sorted(rows.event))
        if self.final and not self.asked_final:
            what = "a session_window(...)" if sessions else "a window beside a session_window(...)"
            raise self._cannot(
                f"{what} of a column without a watermark" if event else f"{what} over an input without a watermark",
                here, hint="A session is written when it is over: 'watermark:' of the input says when that is.",
            )  # fmt: skip
        if self.final:
            raise MODEL_SETTING.error(
                f"a window is final when a watermark has passed it, and {event} carries it: the window is of another "
                "column, or not grouped by itself." if event else
                "a window is final when a watermark has passed it, and "
                f"{'its input has none' if self.watermarked else 'no input has one'}.",
                at=self.statement.at(here),
                hint=f"Group by window({event}, ...); its start and end can be selected." if event else
                "Add 'watermark:' to the input, or leave 'emit: final' out.",
            )  # fmt: skip
        if event:
            self._warn(
                here, f"the watermark is of {event}, and the groups are of no window of it, so none is ever closed, "
                "and the state of all of them is kept for ever",
                f"group by window({event}, ...), of which start and end can be selected, or put the 'watermark:' on "
                "the column of the window",
            )  # fmt: skip
        else:
            self._warn(
                here, "without a watermark no window is ever closed, and the state of all of them is kept for ever",
                "add a 'watermark:' to the input, with how late its rows may come",
            )  # fmt: skip

    def _distinct(self, rows: Rows, node: exp.Expr) -> Rows:
        self._kept(rows)
        if rows.updating or (rows.outer and not self.final):
            over = below(rows) if rows.updating else "an outer join of two streams"
            raise self._cannot(f"DISTINCT over {over}", node)
        if self.final:
            if not rows.event:
                self.open.append(("DISTINCT", node))
            return replace(rows, joined=True, outer=False)
        if rows.columns is None and self.checks_keys:
            raise MODEL_KEYS.error(
                "the columns of DISTINCT are not known.", at=self.statement.at(node),
                hint="Name each column instead of '*', or set unique_key.",
            )  # fmt: skip
        if rows.columns is not None and not rows.event & {column.lower() for column in rows.columns}:
            self._warn(
                node, "DISTINCT remembers every row for ever",
                "select the event-time column of an input with a 'watermark:', or use 'deduplicate_by'",
            )  # fmt: skip
        return replace(rows, keys=rows.columns or (), steady=True)

    def _ordered(self, node: exp.Expr, rows: Rows) -> None:
        if not rows.streaming:
            return
        for argument, name in (("order", "ORDER BY"), ("sort", "SORT BY"), ("cluster", "CLUSTER BY")):
            if node.args.get(argument):
                raise self._cannot(name, node.args[argument])
        limit = node.args.get("limit")
        if limit is not None and not is_zero(limit.expression):
            raise self._cannot("LIMIT", limit)
        if node.args.get("offset"):
            raise self._cannot("OFFSET", node.args["offset"])

    def _subqueries(self, node: exp.Select, ctes: Mapping[str, Rows]) -> None:
        """Subqueries in expressions may be anything over tables, and nothing over a stream."""
        for part in own_parts(node):
            inner = part if isinstance(part, exp.Subquery) else exists_query(part)
            if inner is not None and self.query(inner, ctes).streaming:
                raise self._cannot("a subquery over a stream", part, hint="Write it as a join.")

    def _carried(self, node: exp.Select, rows: Rows) -> tuple[str, ...]:
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


def _join_name(join: exp.Join) -> str:
    return " ".join(word for word in (join.side, join.kind) if word and word.upper() != "OUTER").lower()
