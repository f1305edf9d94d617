"""Clicks as a shop sees them: pure, from a seed.

Rules
- A user starts a session, looks at several items, mostly of one category, sometimes puts one into the cart, and
  sometimes buys what is in it. Several sessions are open at once.
- Users and items are skewed: a few of them make up most of the clicks (weights fall as 1/rank).
- The same seed gives the same clicks, times excepted; with a start time, the times too.
- Now and then a click's time lies a little before that of the click ahead of it, as it does when phones report late.
- A dirty message is what a careless producer sends: cut off, not JSON, a wrong type, a field missing.
"""

from __future__ import annotations

import json
import random
from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import accumulate

from penstock.dev.catalogue import Product, catalogue

_OPEN_SESSIONS = 40
_NEW_SESSION = 0.08
_OTHER_CATEGORY = 0.12
_ADD_TO_CART = 0.10
_PURCHASE = 0.45  # of those that leave with something in the cart
_LATE = 0.02
_LATE_SECONDS = 5.0

Clock = Callable[[], float]


@dataclass(frozen=True)
class Message:
    """What goes to Kafka."""

    key: bytes
    value: bytes
    trace_id: str


@dataclass
class _Session:
    user_id: str
    session_id: str
    category: int
    views_left: int
    cart: str | None = None


class _Skewed:
    """Positions 0..n-1, drawn with weights 1, 1/2, 1/3, …"""

    def __init__(self, n: int) -> None:
        self._bounds = list(accumulate(1.0 / rank for rank in range(1, n + 1)))
        self._total = self._bounds[-1]
        self._last = n - 1

    def draw(self, rng: random.Random) -> int:
        return min(bisect(self._bounds, rng.random() * self._total), self._last)


class Clicks:
    """An endless sequence of clicks."""

    def __init__(self, *, seed: int | None, users: int, clock: Clock, dirty: float = 0.0) -> None:
        if users < 1:
            raise ValueError("at least one user is needed")
        if not 0.0 <= dirty <= 1.0:
            raise ValueError("the share of dirty messages is between 0 and 1")
        self._rng = random.Random(seed)
        self._late = random.Random(self._rng.getrandbits(64))  # its own, so that dirt and lateness move no click
        self._dirt = random.Random(self._rng.getrandbits(64))
        self._clock, self._dirty = clock, dirty
        shelves: dict[str, list[Product]] = {}
        for product in catalogue():
            shelves.setdefault(product.category, []).append(product)
        self._shelves = [[product.item_id for product in shelf] for shelf in shelves.values()]
        self._names = list(shelves)
        self._shelf_skews = [_Skewed(len(shelf)) for shelf in self._shelves]
        self._categories = _Skewed(len(self._shelves))
        self._users = _Skewed(users)
        self._open: list[_Session] = []

    def __iter__(self) -> Iterator[Message]:
        while True:
            yield self.next()

    def next(self) -> Message:
        """The next click."""
        rng = self._rng
        if not self._open or (len(self._open) < _OPEN_SESSIONS and rng.random() < _NEW_SESSION):
            self._open.append(self._session())
        position = int(rng.random() * len(self._open))
        session = self._open[position]
        event, item, page = self._step(session)
        if session.views_left <= 0 and session.cart is None:
            self._open[position] = self._open[-1]
            self._open.pop()
        ids = rng.getrandbits(192)
        event_id, trace_id = f"{ids >> 128:016x}", f"{ids & ((1 << 128) - 1):032x}"
        when = self._clock()
        if self._late.random() < _LATE:
            when -= self._late.random() * _LATE_SECONDS
        # every value is plain ASCII without quotes, so the JSON can be put together by hand: several times as fast
        value = (
            f'{{"event_id": "{event_id}", "user_id": "{session.user_id}", "session_id": "{session.session_id}", '
            f'"item_id": "{item}", "event_type": "{event}", "page": "{page}", "clicked_at": "{iso(when)}"}}'
        ).encode()
        if self._dirty and self._dirt.random() < self._dirty:
            value = soiled(value, self._dirt)
        return Message(session.user_id.encode(), value, trace_id)

    def _session(self) -> _Session:
        rng = self._rng
        user = f"u{self._users.draw(rng):05d}"
        views = 1 + int(rng.expovariate(1 / 6.0))
        return _Session(user, f"s{rng.getrandbits(48):012x}", self._categories.draw(rng), views)

    def _step(self, session: _Session) -> tuple[str, str, str]:
        rng = self._rng
        if session.views_left <= 0 and session.cart is not None:
            item, session.cart = session.cart, None
            return "purchase", item, "/checkout"
        category = session.category
        if rng.random() < _OTHER_CATEGORY:
            category = self._categories.draw(rng)
        item = self._shelves[category][self._shelf_skews[category].draw(rng)]
        session.views_left -= 1
        if session.cart is None and rng.random() < _ADD_TO_CART:
            # kept until the visit ends, and then bought or left behind
            session.cart = item if rng.random() < _PURCHASE else None
            return "add_to_cart", item, "/cart"
        return "view", item, f"/{self._names[category]}/{item}"


def soiled(value: bytes, rng: random.Random) -> bytes:
    """The message as a careless producer would have sent it; its bytes always differ."""
    kind = rng.randrange(5)
    if kind == 0:
        return value[: rng.randrange(1, len(value) - 1)]
    if kind == 1:
        return b"<html><body>502 Bad Gateway</body></html>"
    fields = json.loads(value)
    if kind == 2:
        fields["item_id"] = {"id": fields["item_id"]}
    elif kind == 3:
        fields["clicked_at"] = "yesterday"
    else:
        del fields["item_id"]
    return json.dumps(fields).encode()


def iso(when: float) -> str:
    """2026-01-31T12:00:00.123Z"""
    return datetime.fromtimestamp(when, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
