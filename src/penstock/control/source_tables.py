"""Deploying source tables, and what reads them.

Rules
- A source table is deployed like every stream: an unchanged one changes nothing and asks nobody.
- --full-refresh makes it anew only when its change needs that; it is about models, and a source table that fits its
  topic is as good as a new one.
- A new one is filled before anything is deployed that joins it: rows that come before theirs would find nothing. What
  takes too long goes on in the background, and the caller is told.
- A changed one is rebuilt beside the old one, which is read until then. What is deployed after it may need its new
  columns: the takeover is waited for in the same way.
- Streams that read a source table that is new, or was rebuilt, are started again: they had the old one in hand.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.checkpoint.offsets import committed
from penstock.compiler.spec import KafkaInput, StreamSpec
from penstock.control.deploy import Deployment, deploy
from penstock.control.deployed import spec_of
from penstock.control.inputs import access, topics_read
from penstock.control.requests import rebuilt
from penstock.control.streams import restart_runs
from penstock.control.waiting import Tell, silent, wait_for
from penstock.errors import PenstockError
from penstock.errors.catalogue import CHANGE_NEEDS_REBUILD, SOURCE_TABLE_STOP, STREAM_FAILED
from penstock.kafka.topics import partitions
from penstock.paths import ProjectPaths
from penstock.project.profile import read_settings
from penstock.store import Desired, RebuildPhase, Store, StreamState, Wanted

FILL = 120.0  # seconds that a new table has to read what its topic holds


@dataclass(frozen=True)
class SourceDeployment:
    """What became of a source table."""

    made: Deployment
    restarted: tuple[str, ...]  # streams that read it

    def as_dict(self) -> dict[str, Any]:
        """As dbt's run_results.json and `penstock run` show it."""
        return {
            "source": self.made.stream,
            "kind": "table",
            "verdict": self.made.verdict,
            "generation": self.made.generation,
            "changes": list(self.made.reasons),
            "restarts": list(self.restarted),
        }


def deploy_source_table(
    store: Store,
    paths: ProjectPaths,
    spec: StreamSpec,
    *,
    full_refresh: bool = False,
    progress: Tell | None = None,
    fill: float = FILL,
) -> SourceDeployment:
    """Make a source table the desired state, and wait until a new one holds what its topic holds."""
    tell = progress or silent
    reading = readers(store, spec.output.shown)
    try:
        made = deploy(store, paths, spec, full_refresh=full_refresh, progress=tell)
    except PenstockError as problem:
        raise _with_readers(problem, reading) if problem.kind is CHANGE_NEEDS_REBUILD else problem from None
    if not made.changed or made.verdict not in ("NEW", "REBUILD"):
        return SourceDeployment(made, ())
    if made.beside:  # whoever reads it is started again at the takeover
        if not _taken_over(store, spec.name, fill, tell):
            tell(f"{spec.name} is still being rebuilt; its old rows are read until the new ones have taken over.")
        return SourceDeployment(made, tuple(each for each in reading if store.desired(each).wanted is Wanted.RUNNING))
    restarted = restart_runs(store, reading)
    if not _filled(store, paths, spec, made.checkpoint, fill, tell):
        tell(f"{spec.name} is still being filled; rows that come now may not find theirs yet.")
    return SourceDeployment(made, restarted)


def readers(store: Store, relation: str) -> tuple[str, ...]:
    """The deployed streams that read a relation; the query behind a source table reads its topic, not the table."""
    others = [want for want in store.all_desired() if want.stream.lower() != relation.lower()]
    return tuple(want.stream for want in others if relation.lower() in _read_by(want))


def is_source_table(want: Desired) -> bool:
    spec = spec_of(want)
    return spec is not None and spec.is_source_table


def stoppable(store: Store, streams: Sequence[str], *, everything: bool) -> list[str]:
    """The streams that may be stopped: of `everything` all but the queries behind source tables; PEN-3022 when one of
    these was named."""
    behind = [stream for stream in streams if is_source_table(store.desired(stream))]
    if behind and not everything:
        raise SOURCE_TABLE_STOP.error(
            f"'{behind[0]}' is the query behind a source table and cannot be stopped.",
            hint=f"'penstock drop {behind[0]}' drops the source table.",
        )
    return [stream for stream in streams if stream not in behind]


def _with_readers(problem: PenstockError, reading: tuple[str, ...]) -> PenstockError:
    if not reading:
        return problem
    hint = f"{problem.kind.fix} {', '.join(reading)} will be started again."
    return problem.kind.error(problem.message, at=problem.at, hint=hint)


def _taken_over(store: Store, stream: str, timeout: float, tell: Tell) -> bool:
    """Whether the rebuild has, in time, taken over; raises what it failed of."""

    def over() -> bool | None:
        rebuild = store.rebuild(stream)
        if rebuild is not None and rebuild.phase is RebuildPhase.FAILED:
            raise rebuilt({"code": rebuild.error_code or STREAM_FAILED.code, "message": rebuild.error})
        return True if rebuild is None else None

    return wait_for(over, timeout, tell=tell, message=f"Rebuilding {stream}") is not None


def _filled(
    store: Store, paths: ProjectPaths, spec: StreamSpec, checkpoint_id: str, timeout: float, tell: Tell
) -> bool:
    """Whether the table has, in time, what its topic held when this was asked; raises what its stream failed of."""
    topic = next(each for each in spec.inputs if isinstance(each, KafkaInput))
    if topic.starting != "earliest":
        return True
    broker = access(topic, read_settings(paths).kafka, paths)
    found = partitions(broker.bootstrap, topics_read(topic, broker), broker.options, now=time.time())
    ends = [((each.topic, each.number), each.end) for each in found if each.messages]
    checkpoint = paths.checkpoint(spec.name, checkpoint_id)

    def reached() -> bool | None:
        actual = store.actual(spec.name)
        if actual.state in (StreamState.FAILED, StreamState.QUARANTINED):
            raise rebuilt({"code": actual.error_code or STREAM_FAILED.code, "message": actual.error})
        read = committed(checkpoint, spec.inputs).get(topic.relation, {})
        return True if all(read.get(name, {}).get(str(number), 0) >= end for (name, number), end in ends) else None

    waited = f"Filling {spec.name} from {topic.topics}"
    return not ends or wait_for(reached, timeout, tell=tell, message=waited) is not None


def _read_by(want: Desired) -> set[str]:
    spec = spec_of(want)
    return {each.relation.lower() for each in spec.inputs} if spec else set()
