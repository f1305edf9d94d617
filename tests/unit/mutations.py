"""Breaks a query on purpose, in one place at a time. Pure.

A mutation is what a person gets wrong: a comparison, a filter that is forgotten, another aggregate, another window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import sqlglot
from sqlglot import exp

_COMPARISONS: dict[type[exp.Expression], type[exp.Expression]] = {
    exp.EQ: exp.NEQ, exp.NEQ: exp.EQ, exp.GT: exp.GTE, exp.GTE: exp.GT, exp.LT: exp.LTE, exp.LTE: exp.LT,
}  # fmt: skip
_ARITHMETIC: dict[type[exp.Expression], type[exp.Expression]] = {
    exp.Add: exp.Sub, exp.Sub: exp.Add, exp.Mul: exp.Div, exp.Div: exp.Mul,
}  # fmt: skip
_DROPPED = (exp.Lower, exp.Trim, exp.Round, exp.Sqrt, exp.Coalesce)


@dataclass(frozen=True)
class Mutation:
    """A query with one thing wrong."""

    operator: str  # what kind of thing
    what: str  # before -> after
    sql: str

    @property
    def name(self) -> str:
        return f"{self.operator}: {self.what}"


def mutations(sql: str) -> list[Mutation]:
    """Every mutation of a query, each once, in the order of the query."""
    tree = sqlglot.parse_one(sql, dialect="spark")
    found: dict[str, Mutation] = {}
    for index, node in enumerate(tree.walk(bfs=False)):
        for operator, change in _changes(node):
            copy = tree.copy()
            target = next(each for at, each in enumerate(copy.walk(bfs=False)) if at == index)
            before = target.sql(dialect="spark")
            after = change(target)
            mutated = copy.sql(dialect="spark")
            if mutated != tree.sql(dialect="spark"):
                found.setdefault(mutated, Mutation(operator, f"{before} -> {after}", mutated))
    return list(found.values())


Change = Callable[[exp.Expression], str]


def _changes(node: exp.Expression) -> Iterator[tuple[str, Change]]:
    kind = type(node)
    if kind in _COMPARISONS:
        yield "comparison", _as(_COMPARISONS[kind])
    if kind in _ARITHMETIC:
        yield "arithmetic", _as(_ARITHMETIC[kind])
    if isinstance(node, exp.Not) or (
        isinstance(node, exp.Is | exp.Like | exp.In) and not isinstance(node.parent, exp.Not)
    ):
        yield "negation", _negated
    if _is_conjunct(node):
        yield "filter dropped", _replaced("TRUE")
    if isinstance(node, _DROPPED):
        yield "function dropped", _argument
    if isinstance(node, exp.Count):
        yield "aggregate", _replaced("COUNT(DISTINCT 1)")
    if isinstance(node, exp.Sum | exp.Max):
        yield "aggregate", lambda each: _put(each, exp.Min(this=each.this.copy()))
    if isinstance(node, exp.ApproxDistinct):
        yield "aggregate", lambda each: _put(each, exp.Count(this=each.this.copy()))
    if isinstance(node, exp.Join):
        yield "join type", _left
    if isinstance(node, exp.Ordered):
        yield "order", _turned
    if isinstance(node, exp.Interval):
        yield "interval", lambda each: _put(each, sqlglot.parse_one("interval 20 minutes", dialect="spark"))
    if isinstance(node, exp.Literal):
        if node.is_string and node.this.endswith(("minute", "minutes")):
            yield "window size", _replaced("'2 minutes'")
        elif not node.is_string and not isinstance(node.parent, exp.Interval | exp.Round):
            yield "constant", _replaced(str(int(node.this) + 1))
    if isinstance(node, exp.In):
        for value in node.expressions:
            yield "list", _without(value.sql(dialect="spark"))


def _is_conjunct(node: exp.Expression) -> bool:
    """One of the conditions of a WHERE, HAVING or ON that all have to hold."""
    if isinstance(node, exp.And):
        return False
    above, key = node.parent, node.arg_key
    while isinstance(above, exp.And):
        above, key = above.parent, above.arg_key
    return isinstance(above, exp.Where | exp.Having) or (isinstance(above, exp.Join) and key == "on")


def _put(node: exp.Expression, other: exp.Expression) -> str:
    node.replace(other)
    return other.sql(dialect="spark")


def _as(kind: type[exp.Expression]) -> Change:
    return lambda node: _put(node, kind(this=node.this.copy(), expression=node.expression.copy()))


def _replaced(text: str) -> Change:
    return lambda node: _put(node, sqlglot.parse_one(text, dialect="spark"))


def _negated(node: exp.Expression) -> str:
    return _put(node, node.this.copy() if isinstance(node, exp.Not) else exp.Not(this=node.copy()))


def _argument(node: exp.Expression) -> str:
    return _put(node, node.this.copy())


def _left(node: exp.Expression) -> str:
    node.set("kind", None)
    node.set("side", "LEFT")
    return "LEFT JOIN"


def _turned(node: exp.Expression) -> str:
    node.set("desc", not node.args.get("desc"))
    node.set("nulls_first", None)
    return node.sql(dialect="spark")


def _without(text: str) -> Change:
    def change(node: exp.Expression) -> str:
        node.set("expressions", [each for each in node.expressions if each.sql(dialect="spark") != text])
        return node.sql(dialect="spark")

    return change
