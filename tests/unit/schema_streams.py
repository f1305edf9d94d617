"""Streams over a source with a schema, in tests: deployed in a project of the test's own, and looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from source_files import compiled, entries

from penstock.control.locking import complete
from penstock.store import StreamState


def source(topic: str, value: str, columns: str = "", **more: str) -> str:
    settings = "".join(f"              {key}: {text}\n" for key, text in more.items())
    return f"""
sources:
  - name: shop
    tables:
      - name: events
        config:
          meta:
            stream:
              topic: {topic}
              value: {value}
{settings}        columns: [{columns}]
"""


class Streams:
    """Deploys a model over a source, and looks at its table."""

    def __init__(self, platform: Any, project: Path, schema: str) -> None:
        self.platform, self.project, self.schema = platform, project, schema

    def deploy(self, text: str, sql: str = "select * from shop.events", name: str = "m", **config: Any) -> str:
        complete(entries(text, self.project), self.project, dict)
        spec = compiled(text, self.project, name=f"{self.schema}.{name}", sql=sql, **config)
        self.platform.deploy(spec)
        if config.get("on_bad_record") != "fail":  # that one may have ended already
            self.platform.state(spec.name, StreamState.RUNNING)
        return str(spec.name)

    def rows(self, stream: str, count: int, query: str = "select * from {}") -> list[tuple[Any, ...]]:
        """The rows of the table, once there are that many."""

        def there() -> list[tuple[Any, ...]] | None:
            found: list[tuple[Any, ...]] = self.platform.sql(query.format(stream))
            return found if len(found) >= count else None

        found = self.platform.until(there, f"{count} rows of {stream}", 60, lambda: self.platform.store.actual(stream))
        return sorted(found, key=repr)
