"""What the engine is asked to do, and what it answered.

Rules
- A command is new, then taken, then done or failed; an ended one never changes again.
- Ended commands are kept up to a bound, open ones always.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import delete, insert, select, update

from penstock.store import schema
from penstock.store.database import Database
from penstock.store.records import Command

COMMANDS_KEPT = 500  # ended ones, in all

_OPEN = ("new", "taken")
_ENDED = ("done", "failed")


class Commands(Database):
    """The commands of a store."""

    def submit(self, kind: str, stream: str, payload: dict[str, Any] | None = None, *, now: float | None = None) -> int:
        """Ask the engine for something; `command(id)` tells what became of it."""
        now = time.time() if now is None else now
        with self._write() as tx:
            done = tx.execute(
                insert(schema.commands).values(
                    kind=kind, stream=stream, payload=payload or {}, state="new", created_at=now
                )
            )
            key = done.inserted_primary_key
        assert key is not None
        return int(key[0])

    def take_commands(self) -> list[Command]:
        """New commands in their order, marked as taken."""
        table = schema.commands
        waiting = select(table).where(table.c.state == "new").order_by(table.c.id)
        with self._read() as tx:  # the engine asks ten times a second; mostly there is nothing and nobody is locked out
            if tx.execute(select(table.c.id).where(table.c.state == "new").limit(1)).first() is None:
                return []
        with self._write() as tx:
            rows = tx.execute(waiting).mappings().all()
            ids = [row["id"] for row in rows]
            tx.execute(update(table).where(table.c.id.in_(ids)).values(state="taken"))
        return [Command(**dict(row) | {"state": "taken"}) for row in rows]

    def finish(self, command_id: int, *, ok: bool, result: dict[str, Any]) -> None:
        """Answer a command; ended ones are kept up to a bound."""
        table = schema.commands
        with self._write() as tx:
            tx.execute(
                update(table)
                .where(table.c.id == command_id, table.c.state.in_(_OPEN))
                .values(state="done" if ok else "failed", result=result)
            )
            tx.execute(delete(table).where(table.c.id <= command_id - COMMANDS_KEPT, table.c.state.in_(_ENDED)))

    def command(self, command_id: int) -> Command | None:
        with self._read() as tx:
            row = tx.execute(select(schema.commands).where(schema.commands.c.id == command_id)).mappings().first()
        return Command(**row) if row else None

    def open_commands(self, stream: str | None = None) -> list[Command]:
        """Commands, of one stream or of all, that are not answered yet, in their order."""
        table = schema.commands
        query = select(table).where(table.c.state.in_(_OPEN)).order_by(table.c.id)
        if stream is not None:
            query = query.where(table.c.stream == stream)
        with self._read() as tx:
            return [Command(**row) for row in tx.execute(query).mappings()]

    def abandon_commands(self) -> int:
        """A new engine starts clean: what its predecessor was asked and never answered has failed."""
        lost = {"code": "PEN-4005", "message": "The engine ended before it answered."}
        table = schema.commands
        with self._write() as tx:
            done = tx.execute(update(table).where(table.c.state.in_(_OPEN)).values(state="failed", result=lost))
        return done.rowcount
