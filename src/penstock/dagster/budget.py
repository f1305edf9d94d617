"""How many events Dagster's log gets. Pure.

Rules
- An event has to be paid for from a budget: a few at once, and then one for each stretch of time. What cannot be paid
  for now is not lost: the next look tells the state that is true then.
- A state that does not change is told again once in an hour, so that a page that nobody touched is known to be alive.
- So the number of events of a day has a bound, whatever the streams do: `events_per_day`; and so has the number of
  runs that nobody asked for by hand, and what each of them writes: `runs_per_day`, `run_events_per_day`.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.control.policy import SHORTEST, Policy

DAY = 86_400.0
ROLL_UP = 3_600.0  # seconds after which an unchanged state is told again
TRIES = Policy(base=60.0, factor=2.0, cap=3600.0, quarantine_after=5, healthy_after=600.0)  # restarts of one subject


@dataclass(frozen=True)
class Rate:
    """So many at once, and one more for each stretch of time."""

    burst: int
    every: float  # seconds

    def per_day(self) -> int:
        return self.burst + int(DAY / self.every)


CHECKS = Rate(burst=12, every=900)  # of one check of one stream or part
POINTS = Rate(burst=12, every=600)  # numbers of one stream, for the plots
UPDATES = Rate(burst=4, every=900)  # "the table has new rows", which other assets follow


RESULTS = Rate(burst=12, every=900)  # runs of dbt outside of Dagster

AUTOMATION_EVERY = 30.0  # seconds between two looks of Dagster at automation conditions: one run for each at most
RUN_EVENTS = 40  # of a run by itself: queued, started, its step, its log lines, its end
ITEM_EVENTS = 8  # of each asset or check in a run: planned, log line, result, output
HOURS = 24


@dataclass(frozen=True)
class Purse:
    """What is left of a budget."""

    left: float
    at: float

    @classmethod
    def full(cls, rate: Rate, now: float) -> Purse:
        return cls(float(rate.burst), now)

    def filled(self, rate: Rate, now: float) -> Purse:
        """The purse with what came in since; a clock that went back brings nothing."""
        return Purse(min(float(rate.burst), self.left + max(0.0, now - self.at) / rate.every), max(self.at, now))

    @property
    def can_pay(self) -> bool:
        return self.left >= 1.0

    def paid(self) -> Purse:
        return Purse(self.left - 1.0, self.at)


def events_per_day(streams: int, parts: int, nodes: int = 0) -> int:
    """The most events that sensors can tell in a day, with the purses full at its beginning.

    The parts have a check each, and the supervisor has `restarts`; `nodes` are the models and tests that dbt builds
    outside of Dagster, each time all of them.
    """
    stream = 2 * CHECKS.per_day() + POINTS.per_day() + UPDATES.per_day()
    return streams * stream + (parts + 1) * CHECKS.per_day() + nodes * RESULTS.per_day()


def quiet_events_per_day(streams: int, parts: int) -> int:
    """The events of a day in which nothing changes and every table gets rows all the time."""
    hourly = int(DAY / ROLL_UP)
    stream = 2 * hourly + int(DAY / POINTS.every) + int(DAY / UPDATES.every)
    return streams * stream + (parts + 1) * hourly


@dataclass(frozen=True)
class Runs:
    """Runs of a day that no person starts, by what starts them."""

    tests: int  # dbt's tests, every hour
    followers: int  # of models that follow a table
    restarts: int
    purge: int

    @property
    def all(self) -> int:
        return self.tests + self.followers + self.restarts + self.purge


def runs_per_day(streams: int, *, followed: int = 0, dbt: bool = True) -> Runs:
    """The most runs of a day: `followed` tables have models that follow them at once (`eager`)."""
    news = followed * UPDATES.per_day() + (RESULTS.per_day() if dbt and followed else 0)
    return Runs(HOURS, min(news, int(DAY / AUTOMATION_EVERY)), (streams + 1) * restarts_per_day(), 1)


def quiet_runs_per_day(*, followed: int = 0) -> Runs:
    """The runs of a day in which nothing fails and every table gets rows all the time."""
    return Runs(HOURS, min(followed * int(DAY / UPDATES.every), int(DAY / AUTOMATION_EVERY)), 0, 1)


def restarts_per_day(policy: Policy = TRIES) -> int:
    """The most restarts of one subject: all tries, then well for just as long as it takes to begin anew."""
    waits = sum(SHORTEST * min(policy.base * policy.factor**n, policy.cap) for n in range(policy.quarantine_after - 1))
    return policy.quarantine_after * (int(DAY / (waits + policy.healthy_after)) + 1)


def run_events(items: int) -> int:
    """The most events of a run with so many assets and checks."""
    return RUN_EVENTS + ITEM_EVENTS * items


def run_events_per_day(runs: Runs, *, tests: int, following: int) -> int:
    """The most events of such runs: `tests` are dbt's, `following` the assets and checks of models that follow."""
    return runs.tests * run_events(tests) + runs.followers * run_events(following) + (runs.restarts + 1) * run_events(0)
