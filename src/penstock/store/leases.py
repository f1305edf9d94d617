"""Leases with fencing tokens.

Rules
- At most one holder at a time; a lease that nobody renews is free after its time to live.
- Each acquisition has a higher token than every one before it under the same name, for ever.
- The lease of a process that is known to be dead can be taken at once.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import insert, select, update

from penstock.errors import PenstockError
from penstock.store import schema
from penstock.store.database import Database
from penstock.store.holder import holder_is_dead
from penstock.store.records import Lease

log = logging.getLogger(__name__)


class Leases(Database):
    """The leases of a store."""

    def acquire(
        self,
        name: str,
        holder: str,
        ttl: float,
        *,
        now: float | None = None,
        dead: Callable[[str], bool] | None = None,
    ) -> Lease | None:
        """The lease with a new, higher token; None while somebody else holds it.

        `dead(holder)` may tell that the present holder is gone, so that its lease need not be waited out.
        """
        now = time.time() if now is None else now
        table = schema.leases
        with self._write() as tx:
            row = tx.execute(select(table).where(table.c.name == name)).mappings().first()
            if row and row["holder"] and row["expires_at"] > now and not (dead and dead(row["holder"])):
                return None
            lease = Lease(name, holder, (row["token"] if row else 0) + 1, now + ttl)
            values = dataclasses.asdict(lease)
            if row:
                tx.execute(update(table).where(table.c.name == name).values(**values))
            else:
                tx.execute(insert(table).values(**values))
        return lease

    def steal(self, name: str, holder: str, ttl: float, *, now: float | None = None) -> Lease | None:
        """As `acquire`, and a dead process of this host is no obstacle."""
        return self.acquire(name, holder, ttl, now=now, dead=holder_is_dead)

    def renew(self, lease: Lease, ttl: float, *, now: float | None = None) -> Lease | None:
        """The lease with a later end; None when it was lost to a newer holder."""
        now = time.time() if now is None else now
        table = schema.leases
        with self._write() as tx:
            done = tx.execute(
                update(table)
                .where(table.c.name == lease.name, table.c.token == lease.token, table.c.holder == lease.holder)
                .values(expires_at=now + ttl)
            )
        return dataclasses.replace(lease, expires_at=now + ttl) if done.rowcount else None

    @contextmanager
    def kept(self, lease: Lease, ttl: float, every: float) -> Iterator[None]:
        """Renew the lease in the background while something long goes on."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(every):
                try:
                    self.renew(lease, ttl)
                except PenstockError as problem:  # the next time may do
                    log.warning("lease '%s' could not be renewed: %s", lease.name, problem)

        thread = threading.Thread(target=renew, name=f"lease {lease.name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def release(self, lease: Lease) -> None:
        """Give the lease back; a lease that was lost already is left alone."""
        table = schema.leases
        with self._write() as tx:
            tx.execute(
                update(table)
                .where(table.c.name == lease.name, table.c.token == lease.token)
                .values(holder="", expires_at=0.0)
            )

    def lease(self, name: str) -> Lease | None:
        """Who holds it now, expired or not; None when it is free."""
        with self._read() as tx:
            row = tx.execute(select(schema.leases).where(schema.leases.c.name == name)).mappings().first()
        return Lease(**row) if row and row["holder"] else None

    def lease_record(self, name: str) -> Lease | None:
        """The lease with its last token, also when it is free (its holder is empty then); None before the first."""
        with self._read() as tx:
            row = tx.execute(select(schema.leases).where(schema.leases.c.name == name)).mappings().first()
        return Lease(**row) if row else None

    def live_lease(self, name: str, *, now: float | None = None) -> Lease | None:
        """The lease if its holder counts: not expired and not a dead process of this host."""
        now = time.time() if now is None else now
        found = self.lease(name)
        return found if found and found.expires_at > now and not holder_is_dead(found.holder) else None
