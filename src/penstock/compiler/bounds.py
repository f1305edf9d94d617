"""What the conditions of a join of two streams say: are rows that meet equal in something, and is the join bounded in
time, so that old rows can leave its state.

Rules
- Spark joins two streams by equal values alone: a comparison of equality between columns of both, or USING.
- A bound is a comparison (<, <=, >, >=, BETWEEN) that names columns of event time on both its sides. Two of them, one
  in each direction, bound the state of both inputs; equal event times or equal windows do so alone.
- The bound is a rule of thumb on names: it decides a warning, never a refusal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from sqlglot import exp

from penstock.compiler.statement import WINDOW


def is_bounded(conditions: Iterable[exp.Expr], event: Collection[str]) -> bool:
    """Whether the conditions of a join bound it in both directions; `event` are names of event-time columns."""
    bounds = 0
    for condition in conditions:
        for part in condition.walk():
            if isinstance(part, exp.Between) and _named(part.this, event):
                bounds += _named(part.args["low"], event) + _named(part.args["high"], event)
            elif isinstance(part, exp.LT | exp.LTE | exp.GT | exp.GTE):
                bounds += _named(part.this, event) and _named(part.expression, event)
            elif isinstance(part, exp.EQ) and _named(part.this, event) and _named(part.expression, event):
                bounds += 2
    return bounds >= 2


def has_equality(join: exp.Join, where: exp.Expr | None) -> bool:
    """Whether rows of both sides meet by equal values. WHERE counts for a join that leaves no row without another."""
    if join.args.get("using") or (join.method or "").upper() == "NATURAL":
        return True
    keeps = bool(join.side) or (join.kind or "").upper() in {"SEMI", "ANTI"}
    conditions = [join.args.get("on"), None if keeps else where]
    return any(_equates(part) for each in conditions if isinstance(each, exp.Expr) for part in _all_of(each))


def _all_of(condition: exp.Expr) -> Iterator[exp.Expr]:
    """The conditions that have to hold together."""
    inner = condition.unnest()
    if isinstance(inner, exp.And):
        yield from _all_of(inner.left)
        yield from _all_of(inner.right)
    else:
        yield inner


def _equates(part: exp.Expr) -> bool:
    if not isinstance(part, exp.EQ | exp.NullSafeEQ):
        return False
    left, right = ({column.table.lower() for column in side.find_all(exp.Column)} for side in (part.left, part.right))
    return bool(left) and bool(right) and ("" in left | right or not left & right)


def _named(part: exp.Expr, event: Collection[str]) -> bool:
    names = {identifier.name.lower().replace(WINDOW, "window") for identifier in part.find_all(exp.Identifier)}
    return bool(names & {*event, "window"})
