"""Which sources are views of the catalog, and by which definition."""

from __future__ import annotations

import time

from sqlalchemy import delete, insert, select

from penstock.store import schema
from penstock.store.database import Database
from penstock.store.records import DeployedSource


class Sources(Database):
    """The sources of a store."""

    def sources(self) -> dict[str, DeployedSource]:
        """Every deployed source by its relation."""
        with self._read() as tx:
            rows = tx.execute(select(schema.sources).order_by(schema.sources.c.relation)).mappings().all()
        return {row["relation"]: DeployedSource(**dict(row)) for row in rows}

    def put_source(
        self, relation: str, spec_json: str, fingerprint: str, properties: list[str], *, now: float | None = None
    ) -> None:
        """Keep what was made of a source."""
        now = time.time() if now is None else now
        row = {"relation": relation, "hash": fingerprint, "spec_json": spec_json, "properties": properties}
        with self._write() as tx:
            tx.execute(delete(schema.sources).where(schema.sources.c.relation == relation))
            tx.execute(insert(schema.sources).values(**row, updated_at=now))

    def forget_source(self, relation: str) -> None:
        with self._write() as tx:
            tx.execute(delete(schema.sources).where(schema.sources.c.relation == relation))
