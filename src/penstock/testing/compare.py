"""Expected rows beside those that are there. Pure.

Rules
- Only the columns that the expected rows name are compared; a column that a row leaves out is not compared in that row.
- Rows are a bag: how often each is there counts, their order does not, unless it is asked for.
- Of what does not match, rows that are most alike are shown as one row with different cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import did_you_mean
from penstock.testing.values import UnfitError, canonical, shown

ABSENT = object()  # a cell that a row does not name


@dataclass(frozen=True)
class Line:
    """A row that is not as expected."""

    sign: str  # - missing, + unexpected, ~ different
    cells: tuple[tuple[str, str], ...]  # expected and found, as text; equal where they agree or only one is there

    def as_dict(self, columns: Sequence[str]) -> dict[str, Any]:
        kind = {"-": "missing", "+": "unexpected", "~": "different"}[self.sign]
        cells = {
            name: {"expected": one, "found": other} if one != other else one
            for name, (one, other) in zip(columns, self.cells, strict=True)
        }
        return {"kind": kind, "row": cells}


@dataclass(frozen=True)
class Diff:
    """How the rows differ."""

    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    matched: int

    @property
    def summary(self) -> str:
        counts = {sign: sum(line.sign == sign for line in self.lines) for sign in "-+~"}
        words = (("-", "missing"), ("+", "unexpected"), ("~", "different"))
        parts = [f"{counts[sign]} {word}" for sign, word in words if counts[sign]]
        return f"{', '.join(parts)}, {self.matched} as expected" if parts else "in another order"


def compare(
    expected: Sequence[Mapping[str, Any]],
    found: pa.Table,
    *,
    subset: bool = False,
    ordered: bool = False,
    keys: Sequence[str] = (),
) -> Diff | None:
    """How the rows differ; None when they do not. Raises UnfitError for what the table cannot hold."""
    columns = _columns(expected, found)
    shown_columns = columns or list(found.column_names)
    types = {name: found.schema.field(name).type for name in shown_columns}
    wanted = [_wanted(row, types) for row in expected]
    rows = found.select(shown_columns).to_pylist()
    there = [{name: canonical(row[name], types[name]) for name in shown_columns} for row in rows]
    if ordered:
        return _in_order(wanted, there, shown_columns)
    left_wanted, left_there = list(wanted), list(there)
    # A row that names fewer columns fits more rows: those that name the most choose first.
    for row in sorted(wanted, key=lambda each: -len(each)):
        match = next((each for each in left_there if _fits(row, each)), None)
        if match is not None:
            _take(left_there, match)
            _take(left_wanted, row)
    if not left_wanted and (subset or not left_there):
        return None
    matched = len(wanted) - len(left_wanted)
    lines = _lines(left_wanted, [] if subset and not left_wanted else left_there, shown_columns, keys, subset=subset)
    return Diff(tuple(shown_columns), tuple(lines), matched)


def _take(rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
    del rows[next(index for index, each in enumerate(rows) if each is row)]


def _columns(expected: Sequence[Mapping[str, Any]], found: pa.Table) -> list[str]:
    known = {name.lower(): name for name in found.column_names}
    named: dict[str, None] = {}
    for row in expected:
        for name in row:
            right = known.get(str(name).lower())
            if right is None:
                hint = did_you_mean(str(name), found.column_names)
                raise UnfitError(f"there is no column '{name}'. {hint}".rstrip(". "))
            named[right] = None
    return [name for name in found.column_names if name in named]


def _wanted(row: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    known = {name.lower(): name for name in types}
    made = {}
    for name, value in row.items():
        right = known[str(name).lower()]
        try:
            made[right] = canonical(value, types[right])
        except UnfitError as problem:
            raise UnfitError(f"column '{right}': {problem}") from None
    return made


def _fits(wanted: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    return all(_same(value, row[name]) for name, value in wanted.items())


def _same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))  # NaN is NaN here


def _in_order(wanted: list[dict[str, Any]], there: list[dict[str, Any]], columns: Sequence[str]) -> Diff | None:
    pairs = list(zip(wanted, there, strict=False))
    if len(wanted) == len(there) and all(_fits(one, other) for one, other in pairs):
        return None
    lines = [_different(one, other, columns) for one, other in pairs if not _fits(one, other)]
    lines += [_single("-", row, columns) for row in wanted[len(pairs) :]]
    lines += [_single("+", row, columns) for row in there[len(pairs) :]]
    return Diff(tuple(columns), tuple(lines), sum(_fits(one, other) for one, other in pairs))


def _lines(
    wanted: list[dict[str, Any]],
    there: list[dict[str, Any]],
    columns: Sequence[str],
    keys: Sequence[str],
    *,
    subset: bool,
) -> list[Line]:
    lines, rest = [], list(there)
    for row in wanted:
        best = max(rest, key=lambda each: _likeness(row, each, keys), default=None)
        if best is not None and _likeness(row, best, keys) > 0.5:
            _take(rest, best)
            lines.append(_different(row, best, columns))
        else:
            lines.append(_single("-", row, columns))
    return lines if subset else [*lines, *(_single("+", row, columns) for row in rest)]


def _likeness(wanted: Mapping[str, Any], row: Mapping[str, Any], keys: Sequence[str]) -> float:
    """1 of rows that are equal; rows of the same key are always alike, rows of different keys never."""
    named = [key for key in keys if key in wanted]
    if named:
        return 1.0 if all(_same(wanted[key], row[key]) for key in named) else 0.0
    if not wanted:
        return 0.0
    equal = sum(_same(value, row[name]) for name, value in wanted.items())
    return equal / len(wanted) if equal else 0.0


def _different(wanted: Mapping[str, Any], row: Mapping[str, Any], columns: Sequence[str]) -> Line:
    cells = []
    for name in columns:
        found = shown(row[name])
        same = name not in wanted or _same(wanted[name], row[name])
        cells.append((found, found) if same else (_quoted(wanted[name], row[name]), found))
    return Line("~", tuple(cells))


def _quoted(wanted: Any, found: Any) -> str:
    text = shown(wanted)
    return f"'{text}'" if text == shown(found) else text  # null and 'null'


def _single(sign: str, row: Mapping[str, Any], columns: Sequence[str]) -> Line:
    texts = [shown(row[name]) if name in row else "" for name in columns]
    return Line(sign, tuple((text, text) for text in texts))
