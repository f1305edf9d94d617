"""The rows of a part of a query, and what a SELECT makes of their columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from penstock.compiler.statement import WINDOW, Statement
from penstock.errors import did_you_mean
from penstock.errors.catalogue import MODEL_SETTING
from penstock.project.expressions import AGGREGATES

SESSION = "session_window"


@dataclass(frozen=True)
class Rows:
    """What is known of the rows of a part of the query."""

    streaming: bool = False
    keys: tuple[str, ...] | None = None  # of an updating part
    origin: tuple[str, ...] = ()  # its key where the rows are made: in the aggregate, or in the updating input
    changes: bool = False  # the rows are changes of an input
    tables: frozenset[str] = frozenset()  # the updating inputs whose changes they are
    whole: exp.Table | None = field(default=None, compare=False)  # such an input that is recomputed as a whole
    filtered: bool = False  # a row that is there may be gone after a change
    joined_table: bool = False  # and so it may be by a join with a table
    steady: bool = False  # a row never changes: DISTINCT
    joined: bool = False  # a join of two streams is in it
    outer: bool = False  # and one that waits for the watermark before it emits a row
    columns: tuple[str, ...] | None = None  # None: not known
    event: frozenset[str] = frozenset()  # columns that carry the event time of a watermark, in lower case
    windows: Mapping[str, str] = field(default_factory=dict)  # columns that are a window -> the function of it

    @property
    def updating(self) -> bool:
        return self.keys is not None


def own_parts(node: exp.Expr) -> Iterator[exp.Expr]:
    """The expressions of a SELECT itself: not those of its sources, CTEs and subqueries."""
    for name, value in node.args.items():
        if name in {"from", "from_", "with", "with_", "laterals"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, exp.Join):
                for part in (child.args.get("on"), *(child.args.get("using") or ())):
                    if isinstance(part, exp.Expr):
                        yield from down(part)
            elif isinstance(child, exp.Expr):
                yield from down(child)


def down(node: exp.Expr) -> Iterator[exp.Expr]:
    yield node
    if not isinstance(node, exp.Query):
        yield from own_parts(node)


def sources_in(source: exp.Expr) -> Iterator[exp.Expr]:
    """A source of FROM or JOIN; of a join in brackets, which hide no names, the sources in it."""
    if isinstance(source, exp.Subquery) and not source.alias and isinstance(source.this, exp.Table | exp.Subquery):
        yield from sources_in(source.this)
    else:
        yield source
    for join in source.args.get("joins") or ():
        yield from sources_in(join.this)


def below(*sides: Rows) -> str:
    return "a table that replaces its rows" if any(rows.changes for rows in sides) else "an aggregate"


def is_aggregate(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in AGGREGATES
    return isinstance(node, exp.AggFunc) and not isinstance(node.parent, exp.Window)


def contains_aggregate(node: exp.Expr) -> bool:
    return any(is_aggregate(part) for part in down(node))


def exists_query(node: exp.Expr) -> exp.Expr | None:
    return node.this if isinstance(node, exp.Exists) and isinstance(node.this, exp.Query) else None


def output_columns(node: exp.Select, rows: Rows) -> tuple[str, ...] | None:
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
            name = projection.alias_or_name
            names.append("window" if name.lower() == WINDOW else name)
    return tuple(names)


def columns_named(statement: Statement, setting: str, names: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that a setting names, as the result writes them."""
    named = {column.lower(): column for column in columns}
    for name in names:
        if name.lower() not in named:
            raise MODEL_SETTING.error(
                f"{setting} '{name}' is not among the columns of the model.", at=statement.at(statement.tree),
                hint=did_you_mean(name, columns),
            )  # fmt: skip
    return tuple(named[name.lower()] for name in names)


def selected(node: exp.Select, rows: Rows) -> Rows:
    """The rows with event time and windows under the names of this SELECT."""
    event: set[str] = set()
    windows: dict[str, str] = {}
    for projection in node.expressions:
        name, value = plain(projection.alias_or_name), projection.unalias()
        if projection.is_star:
            event |= rows.event
            windows |= rows.windows
            continue
        if carries_event_time(value, rows.event):
            event.add(name)
        if function := window_function(value, rows.windows):
            windows[name] = function
    return replace(rows, event=frozenset(event), windows=windows)


def window_function(node: exp.Expr, windows: Mapping[str, str]) -> str:
    """'window' or 'session_window' of a call, and of a column that is one; '' of anything else, of its start, too."""
    if isinstance(node, exp.Paren):
        return window_function(node.this, windows)
    if isinstance(node, exp.Column):
        return "" if node.table.lower() == WINDOW else windows.get(plain(node.name), "")
    return plain(node.name) if isinstance(node, exp.Anonymous) and plain(node.name) in {"window", SESSION} else ""


def carries_event_time(node: exp.Expr, event: frozenset[str]) -> bool:
    """Whether Spark knows the watermark of a value: of a column of event time, and of a window of one.

    Of anything else that is made of them it does not, not even of a window's start or a cast.
    """
    if isinstance(node, exp.Column):
        return node.table.lower() != WINDOW and plain(node.name) in event
    if isinstance(node, exp.Paren):
        return carries_event_time(node.this, event)
    if isinstance(node, exp.Anonymous) and plain(node.name) in {"window", SESSION, "window_time"}:
        return bool(node.expressions) and carries_event_time(node.expressions[0], event)
    return False


def plain(name: str) -> str:
    """A name in lower case, as the model has it."""
    return name.lower().replace(WINDOW, "window")


def renamed(rows: Rows, names: tuple[str, ...]) -> Rows:
    if not names:
        return rows
    renames = dict(zip((column.lower() for column in rows.columns or ()), names, strict=False))
    keys = None if rows.keys is None else tuple(renames.get(key.lower(), key) for key in rows.keys)
    event = frozenset(renames.get(name, name).lower() for name in rows.event)
    windows = {renames.get(name, name).lower(): function for name, function in rows.windows.items()}
    return replace(rows, columns=names, keys=keys, event=event, windows=windows)


def column_aliases(node: exp.Expr) -> tuple[str, ...]:
    alias = node.args.get("alias")
    return tuple(column.name for column in alias.args.get("columns") or ()) if isinstance(alias, exp.TableAlias) else ()


def both(left: Rows, right: Rows) -> tuple[str, ...] | None:
    if left.columns is None or right.columns is None:
        return None
    return left.columns + right.columns


def is_zero(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.Literal) and node.name == "0"
