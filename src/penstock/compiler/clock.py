"""Conditions that ask the clock: a row meets them when it is looked at, and nobody looks again when time has passed.

Rules
- WHERE, HAVING, ON and the FILTER of an aggregate count, and so does a condition in the argument of one. Any other
  clock in the result is a column like another, such as the time at which a row was loaded, or the newest of these.
- A clock is a function that gives the time of now, or a literal that does (`timestamp 'now'`, `date 'today'`).
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from penstock.compiler.rows import down, is_aggregate, own_parts
from penstock.compiler.statement import Statement

_CURE = "a window with a 'watermark:', or a view over the table that filters when it is read"
_CLOCKS: tuple[tuple[type[exp.Expr], str], ...] = (
    (exp.CurrentTimestamp, "current_timestamp"),
    (exp.CurrentDate, "current_date"),
    (exp.CurrentTime, "current_time"),
    (exp.Localtimestamp, "localtimestamp"),
)
_NAMES = {"now", "curdate", "current_date", "current_time", "current_timestamp", "localtimestamp"}
_LITERALS = {"now", "today", "yesterday", "tomorrow"}


def clock_warnings(statement: Statement, *, full: bool, node: exp.Select | None = None) -> list[str]:
    """A warning on each condition of a SELECT, or of all, that asks the clock."""
    selects = [node] if node is not None else list(statement.tree.find_all(exp.Select))
    told = (
        "it is asked when an input changes, so rows that have grown too old stay while the inputs are idle" if full else
        "a row is asked once, when it comes, and what was made of it stays when its time has passed"
    )  # fmt: skip
    return [
        f"{statement.at(condition)}: {name} asks the clock ({clock}), and {told}. Cure: {_CURE}."
        for each in selects
        for name, condition, clock in _asked(each)
    ]


def _asked(node: exp.Select) -> Iterator[tuple[str, exp.Expr, str]]:
    for name, condition in _conditions(node):
        clock = next((found for part in down(condition) if (found := _clock(part))), None)
        if clock is not None:
            yield name, condition, clock


def _conditions(node: exp.Select) -> Iterator[tuple[str, exp.Expr]]:
    origin = node.args.get("from_") or node.args.get("from")
    for place in (node, origin.this if origin else None):
        for join in place.args.get("joins") or () if place is not None else ():
            if isinstance(join.args.get("on"), exp.Expr):
                yield "ON", join.args["on"]
    for part in own_parts(node):
        if isinstance(part, exp.Where):
            yield "FILTER" if isinstance(part.parent, exp.Filter) else "WHERE", part.this
        elif isinstance(part, exp.Having):
            yield "HAVING", part.this
    for aggregate in (part for each in node.expressions for part in down(each) if is_aggregate(part)):
        for part in aggregate.walk(prune=lambda inner: _decides(inner) or isinstance(inner, exp.Query)):
            if _decides(part):
                yield "a condition in an aggregate", part


def _decides(part: exp.Expr) -> bool:
    """Whether it is a condition, or what CASE compares."""
    compared = isinstance(part.parent, exp.Case | exp.If) and part.arg_key == "this"
    return compared or isinstance(part, exp.Predicate | exp.Connector | exp.Not)


def _clock(node: exp.Expr) -> str | None:
    """The clock's name, if it is one."""
    for kind, name in _CLOCKS:
        if isinstance(node, kind):
            return "unix_timestamp" if isinstance(node.parent, exp.StrToUnix) else name
    if node.name.lower() in _NAMES and (
        (isinstance(node, exp.Anonymous) and not node.expressions)
        # Spark knows some of them without brackets.
        or (isinstance(node, exp.Column) and not node.table and not node.this.quoted and node.name.lower() != "now")
    ):
        return node.name.lower()
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) and node.this.name.lower() in _LITERALS:
        return f"'{node.this.name}'" if node.is_type(*exp.DataType.TEMPORAL_TYPES) else None
    return None
