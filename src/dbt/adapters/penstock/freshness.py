"""`dbt source freshness` of a stream: the time of the topic's latest message.

Rules
- The broker is asked, not the engine: nothing is started for it, and no table is needed.
- A source that is no stream has no such time; it needs `loaded_at_field`, as in dbt-spark.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import BaseRelation
from dbt.adapters.base.impl import FreshnessResponse
from dbt.adapters.contracts.connection import AdapterResponse

from penstock.errors.catalogue import SOURCE_NOT_STREAM
from penstock.paths import ProjectPaths

if TYPE_CHECKING:
    from penstock.project.profile import KafkaSettings


def source_of(relation: BaseRelation, sources: Any) -> dict[str, Any]:
    """The manifest's entry of a source's relation."""
    from penstock.project.source import relation_of

    wanted = f"{relation.schema}.{relation.identifier}"
    for source in sources.values():
        entry: dict[str, Any] = source.to_dict(omit_none=False)
        if relation_of(entry) == wanted:
            return entry
    raise SOURCE_NOT_STREAM.error(f"{wanted} is no source of the project.")


def freshness(
    entry: dict[str, Any], kafka: KafkaSettings, project: Path
) -> tuple[AdapterResponse | None, FreshnessResponse]:
    """When the latest message came, as dbt wants it."""
    from penstock.control.inputs import latest_message_at
    from penstock.project.source import is_stream, read_source, relation_of

    if not is_stream(entry):
        raise SOURCE_NOT_STREAM.error(
            f"source {relation_of(entry)} is no stream, so its freshness needs a column.",
            hint="Give it 'loaded_at_field' or 'loaded_at_query'.",
        )
    latest = latest_message_at(read_source(entry, project), kafka, ProjectPaths(project))
    came, now = datetime.fromtimestamp(latest, timezone.utc), datetime.now(timezone.utc)
    answer = FreshnessResponse(max_loaded_at=came, snapshotted_at=now, age=(now - came).total_seconds())
    return AdapterResponse(_message="latest message"), answer
