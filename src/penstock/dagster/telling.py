"""What of all that is found has to be told now. Pure: findings and a memory in, events and a memory out.

Rules
- A finding is told when it is new, when its state changed, and once in an hour; all of it within its budget.
- The numbers of a stream are told at intervals, while nothing happens once in an hour.
- "The table has new rows" is told at intervals, when it has.
- After a long silence of Dagster itself there is one event for each thing that is different, not one for each that was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.control.world import World
from penstock.dagster.budget import CHECKS, POINTS, ROLL_UP, UPDATES, Purse
from penstock.dagster.findings import Facts, Finding, numbers
from penstock.store import Actual, Desired


@dataclass(frozen=True)
class Told:
    """What was told last of one check."""

    state: str
    at: float
    purse: Purse


def changed(
    findings: Iterable[Finding], memory: Mapping[str, Told], now: float, *, roll_up: float | None = ROLL_UP
) -> tuple[list[Finding], dict[str, Told]]:
    """The findings that have to be told, and what is remembered after that."""
    tell: list[Finding] = []
    after: dict[str, Told] = {}
    for finding in findings:
        before = memory.get(finding.key)
        purse = before.purse.filled(CHECKS, now) if before else Purse.full(CHECKS, now)
        due = before is None or before.state != finding.state or (roll_up is not None and now - before.at >= roll_up)
        if due and purse.can_pay:
            tell.append(finding)
            after[finding.key] = Told(finding.state, now, purse.paid())
        elif before is not None:
            after[finding.key] = Told(before.state, before.at, purse)
    return tell, after


@dataclass(frozen=True)
class Seen:
    """What was told last of a stream's numbers and rows."""

    points: Purse
    updates: Purse
    at: float  # of the last numbers
    generation: int
    rows_in: int
    rows_out: int
    batch_id: int | None
    lag_rows: int | None
    updated_rows: int  # rows written when "new rows" was told last


@dataclass(frozen=True)
class Point:
    """Numbers of a stream, for the plots."""

    stream: str
    facts: Facts


@dataclass(frozen=True)
class Update:
    """A stream's table has new rows."""

    stream: str
    rows: int
    facts: Facts


def plotted(world: World, memory: Mapping[str, Seen]) -> tuple[list[Point | Update], dict[str, Seen]]:
    """The numbers and the news of all streams that are due."""
    tell: list[Point | Update] = []
    after: dict[str, Seen] = {}
    for want in world.desired:
        found = world.of(want.stream)
        events, after[want.stream] = _stream(want, found, world, memory.get(want.stream))
        tell += events
    return tell, after


def _stream(want: Desired, found: Actual, world: World, before: Seen | None) -> tuple[Sequence[Point | Update], Seen]:
    now = world.at
    if before is None:
        first: list[Point | Update] = [Point(want.stream, numbers(want, world))]
        if found.total_rows_out:
            first.append(_update(want, found, found.total_rows_out))
        purses = Purse.full(POINTS, now).paid(), Purse.full(UPDATES, now).paid()
        return first, _seen(want, found, now, *purses, found.total_rows_out)
    points, updates = before.points.filled(POINTS, now), before.updates.filled(UPDATES, now)
    tell: list[Point | Update] = []
    # A count that began again was dropped and deployed anew.
    told_rows = before.updated_rows if found.total_rows_out >= before.updated_rows else 0
    new_rows = found.total_rows_out - told_rows
    if new_rows and updates.can_pay:
        updates, told_rows = updates.paid(), found.total_rows_out
        tell.append(_update(want, found, new_rows))
    busy = (found.batch_id, found.lag_rows, want.generation) != (before.batch_id, before.lag_rows, before.generation)
    if (busy or now - before.at >= ROLL_UP) and points.can_pay:
        tell.append(Point(want.stream, {**numbers(want, world), **_rates(found, before, now)}))
        return tell, _seen(want, found, now, points.paid(), updates, told_rows)
    return tell, Seen(
        points, updates, before.at, before.generation, before.rows_in, before.rows_out, before.batch_id,
        before.lag_rows, told_rows,
    )  # fmt: skip


def _update(want: Desired, found: Actual, rows: int) -> Update:
    facts: dict[str, int | float | str] = {
        "new_rows": rows,
        "total_rows_out": found.total_rows_out,
        "generation": found.generation,
        "checkpoint": want.checkpoint_id,
    }
    return Update(want.stream, rows, facts)


def _rates(found: Actual, before: Seen, now: float) -> dict[str, float]:
    """Rows per second since the last point: what happened between two points is not left out of the plot."""
    passed = now - before.at
    if passed <= 0 or found.total_rows_in < before.rows_in or found.total_rows_out < before.rows_out:
        return {}
    return {
        "rows_in_per_s": round((found.total_rows_in - before.rows_in) / passed, 3),
        "rows_out_per_s": round((found.total_rows_out - before.rows_out) / passed, 3),
    }


def _seen(want: Desired, found: Actual, now: float, points: Purse, updates: Purse, told_rows: int) -> Seen:
    return Seen(
        points, updates, now, want.generation, found.total_rows_in, found.total_rows_out, found.batch_id,
        found.lag_rows, told_rows,
    )  # fmt: skip
