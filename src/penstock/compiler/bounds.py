"""What the conditions of a join of two streams say: are rows that meet equal in something, and of which of its sides
can old rows leave the state.

Rules
- Spark joins two streams by equal values alone: a comparison of equality between columns of both, or USING.
- Only conditions that have to hold together count: nothing below OR or NOT.
- `a.ts <= b.ts + interval 1 hour` frees the rows of b that a watermark of a has passed; a bound in the other direction
  frees those of a. Both sides are columns of event time themselves, plus or minus a constant: of `date_trunc(…)`,
  `date(…)` or `window.start` Spark knows no watermark. A cast to a timestamp or a number it sees through.
- An equality with a column of event time, or with a window of it, frees both sides.
- WHERE counts for an inner join. What an outer or semi join waits for has to stand in ON, and its constants have to be
  written out: Spark looks at it before it has computed anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from penstock.compiler.rows import Rows, carries_event_time, sources_in

_SIDES = ("left", "right")
_NUMBERS = {
    exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT, exp.DType.FLOAT, exp.DType.DOUBLE,
}  # fmt: skip
_TIMESTAMPS = {exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ}


@dataclass(frozen=True)
class Freed:
    """Of which sides of a join rows leave the state in time."""

    left: bool
    right: bool

    def __or__(self, other: Freed) -> Freed:
        return Freed(self.left or other.left, self.right or other.right)

    @property
    def both(self) -> bool:
        return self.left and self.right


@dataclass(frozen=True)
class _Term:
    node: exp.Expr
    positive: bool
    number: bool  # below a cast to a number


def keeps_rows(join: exp.Join) -> bool:
    """Whether rows are in the result, or out of it, for what they did not meet: an outer, semi or anti join."""
    return bool(join.side) or (join.kind or "").upper() in {"SEMI", "ANTI"}


def freed(join: exp.Join, where: exp.Expr | None, left: Rows, right: Rows) -> Freed:
    """Of which sides of a join of two streams old rows leave the state."""
    meeting = _Meeting(join, left, right)
    found = meeting.by_name()
    for part in _conditions(join, where):
        found |= meeting.freed_by(part)
    return found


def has_equality(join: exp.Join, where: exp.Expr | None) -> bool:
    """Whether rows of both sides meet by equal values. WHERE counts for a join that leaves no row without another."""
    if join.args.get("using") or (join.method or "").upper() == "NATURAL":
        return True
    return any(_equates(part) for part in _conditions(join, where))


class _Meeting:
    """The two sides of a join, and whose a column is."""

    def __init__(self, join: exp.Join, left: Rows, right: Rows) -> None:
        self.join = join
        self.left = left
        self.right = right
        self.folded = not keeps_rows(join)  # constants are computed before Spark looks
        self.names = {each.alias_or_name.lower() for each in sources_in(join.this)}

    def by_name(self) -> Freed:
        """USING and NATURAL: equal values of the columns of one name."""
        names = {part.name.lower() for part in self.join.args.get("using") or ()}
        if (self.join.method or "").upper() == "NATURAL":
            sides = (self.left, self.right)
            columns = [{*side.event, *(name.lower() for name in side.columns or ())} for side in sides]
            names = columns[0] & columns[1]
        timed = bool(names & (self.left.event | self.right.event))
        return Freed(timed, timed)

    def freed_by(self, part: exp.Expr) -> Freed:
        if isinstance(part, exp.EQ):
            timed = _equates(part) and any(self._side(each.unnest()) for each in (part.left, part.right))
            return Freed(timed, timed)
        if isinstance(part, exp.Between):
            low, high = part.args["low"], part.args["high"]
            return self._ordered(low, part.this) | self._ordered(part.this, high)
        if isinstance(part, exp.LT | exp.LTE):
            return self._ordered(part.left, part.right)
        if isinstance(part, exp.GT | exp.GTE):
            return self._ordered(part.right, part.left)
        return Freed(left=False, right=False)

    def _ordered(self, less: exp.Expr, more: exp.Expr) -> Freed:
        """What `less <= more` frees: the side of the greater one, when the watermark of the other has passed it."""
        terms: list[_Term] = []
        for side, positive in ((more, True), (less, False)):
            own = list(_terms(side, positive=positive))
            # The difference of two timestamps is an interval, of which Spark knows no watermark; of numbers it does.
            if sum(isinstance(term.node, exp.Column) for term in own) > 1 and not all(
                term.number for term in own if isinstance(term.node, exp.Column)
            ):
                return Freed(left=False, right=False)
            terms += own
        columns = [term for term in terms if isinstance(term.node, exp.Column)]
        rest = [term for term in terms if not isinstance(term.node, exp.Column)]
        greater = {self._side(term.node) for term in columns if term.positive}
        lesser = {self._side(term.node) for term in columns if not term.positive}
        if len(columns) != 2 or {*greater, *lesser} != {*_SIDES} or not all(self._is_constant(each) for each in rest):
            return Freed(left=False, right=False)
        return Freed(left="left" in greater, right="right" in greater)

    def _side(self, node: exp.Expr) -> str | None:
        """The side whose event time this is."""
        if not isinstance(node, exp.Column):
            return None
        by_side = dict(zip(_SIDES, (self.left, self.right), strict=True))
        owned = [name for name, rows in by_side.items() if carries_event_time(node, rows.event)]
        if node.table:
            owned = [name for name in owned if (name == "right") == (node.table.lower() in self.names)]
        return owned[0] if len(owned) == 1 else None

    def _is_constant(self, term: _Term) -> bool:
        node = term.node
        if node.find(exp.Column) or any(_in_months(each) for each in node.find_all(exp.Interval)):
            return False
        return self.folded or isinstance(node, exp.Interval | exp.Literal)


def _terms(node: exp.Expr, *, positive: bool, number: bool = False) -> Iterator[_Term]:
    """What is added and subtracted."""
    if isinstance(node, exp.Paren):
        yield from _terms(node.this, positive=positive, number=number)
    elif isinstance(node, exp.Neg):
        yield from _terms(node.this, positive=not positive, number=number)
    elif isinstance(node, exp.Add | exp.Sub) and (node.find(exp.Column) or _of_intervals(node)):
        yield from _terms(node.left, positive=positive, number=number)
        yield from _terms(node.right, positive=positive == isinstance(node, exp.Add), number=number)
    elif isinstance(node, exp.Cast) and node.to.this in _NUMBERS | _TIMESTAMPS:
        yield from _terms(node.this, positive=positive, number=number or node.to.this in _NUMBERS)
    else:
        yield _Term(node, positive, number)


def _of_intervals(node: exp.Expr) -> bool:
    """A sum of intervals, as which `interval 1 hour 30 minutes` is parsed, too."""
    inner = node.unnest()
    if isinstance(inner, exp.Add | exp.Sub):
        return _of_intervals(inner.left) and _of_intervals(inner.right)
    return isinstance(inner, exp.Interval)


def _in_months(interval: exp.Interval) -> bool:
    """A month has no fixed length, so Spark computes no watermark with it."""
    return any(unit in interval.sql(dialect="spark").upper() for unit in ("MONTH", "YEAR", "QUARTER"))


def _conditions(join: exp.Join, where: exp.Expr | None) -> Iterator[exp.Expr]:
    """The conditions that have to hold together for rows of both sides to meet."""
    for each in (join.args.get("on"), None if keeps_rows(join) else where):
        if isinstance(each, exp.Expr):
            yield from _all_of(each)


def _all_of(condition: exp.Expr) -> Iterator[exp.Expr]:
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
