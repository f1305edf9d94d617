"""Carrying out what `rebuilds.next_step` decided.

Rules
- A step is written into the store before the next one is decided: a supervisor that dies is followed by one that goes
  on in the same phase.
- What was asked of the engine is asked again by a supervisor that does not know of it: the engine does it once.
- Streams that look up a table whose rows were replaced start again: its columns may be others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.checkpoint.clusters import others, read_from
from penstock.checkpoint.offsets import Offset, committed, committed_in_tables, initial, normalised
from penstock.checkpoint.table_ids import table_id
from penstock.compiler.spec import Input, KafkaInput, StreamSpec, TableInput, TableStreamInput
from penstock.control.delta_log import has_changes_after, newest_version
from penstock.control.deployed import looking_up, spec_of
from penstock.control.lag import table_path
from penstock.control.rebuilds import (
    Advance,
    Ask,
    Finish,
    GiveUp,
    Seen,
    Step,
    TakeOver,
    caught_up,
    groups,
    has_read_since,
    level,
    next_step,
    trouble,
)
from penstock.control.streams import restart_runs
from penstock.paths import ProjectPaths, beside, is_beside, original
from penstock.store import Actual, Command, Rebuild, RebuildPhase, Store, StreamState
from penstock.store.rebuilds import OPEN


class RebuildDriver:
    """Drives the rebuilds of a project, one step of each group in each look."""

    def __init__(self, paths: ProjectPaths, store: Store, say: Callable[[str], None]) -> None:
        self._paths = paths
        self._store = store
        self._say = say
        self._asked: dict[str, tuple[RebuildPhase, int]] = {}  # stream -> the command of this phase
        self._specs: dict[tuple[str, int], StreamSpec] = {}  # of the streams that build stream and generation
        self._complete: dict[tuple[str, int], int] = {}  # stream and generation -> version of its table by then

    def drive(self, rebuilds: Mapping[str, Rebuild], actual: Mapping[str, Actual], *, engine: bool, now: float) -> bool:
        """Take the next step of each group; True when one was taken, and what is wanted has changed."""
        if not rebuilds:
            return False
        # Maintenance of a table is in the way of nobody but of who replaces its rows.
        replaced = {each.stream for each in rebuilds.values() if each.phase is RebuildPhase.TAKING_OVER}
        asked = [each for each in self._store.open_commands() if each.kind != "maintain" or each.stream in replaced]
        open_for = {command.stream for command in asked}
        moved = False
        for members, awaited in groups(rebuilds, self._store.rebuild_links()):
            ordered = upstream_first([self._seen(each, rebuilds, actual, open_for, engine=engine) for each in members])
            self._tell(ordered[0], now)
            step = next_step(ordered, now, awaited | self._missing(ordered))
            if step is not None:
                self._take([each.rebuild for each in ordered], step, now)
                moved = True
        return moved

    def early(self, rebuilds: Mapping[str, Rebuild], actual: Mapping[str, Actual]) -> set[str]:
        """The streams of rebuilds that are not to start yet: a table that they look up has not caught up."""
        found = set()
        for stream, rebuild in rebuilds.items():
            name = beside(stream)
            known = actual.get(name) or Actual(stream=name)
            if rebuild.phase is not RebuildPhase.CATCHING_UP or known.batch_id is not None:
                continue
            if not all(self._is_complete(each, rebuilds, actual) for each in above(self._built(rebuild), TableInput)):
                found.add(name)
        return found

    def _tell(self, first: Seen, now: float) -> None:
        """Say what keeps a group from taking over, once, and let it be seen in the status."""
        found = trouble(first)
        if found is not None and found != (first.new.error_code, first.new.error):
            code, message = found
            self._store.report(beside(first.stream), now=now, error_code=code, error=message)
            self._say(f"{first.stream}: its rows could not be replaced, trying again: {code} {message[:300]}")

    def _is_complete(self, stream: str, rebuilds: Mapping[str, Rebuild], actual: Mapping[str, Actual]) -> bool:
        """Whether a rebuild has once caught up, with all that those had written by then whose new rows it reads.

        It stays so: what was read once is in its checkpoint and its table.
        """
        rebuild = rebuilds.get(stream)
        if rebuild is None or rebuild.phase not in OPEN:
            return False
        key = (stream, rebuild.generation)
        if rebuild.phase is not RebuildPhase.CATCHING_UP or key in self._complete:
            return True
        old, new = (actual.get(name) or Actual(stream=name) for name in (stream, beside(stream)))
        built = self._built(rebuild)
        if not all(self._is_complete(each, rebuilds, actual) for each in above(built)):
            return False
        if new.generation != rebuild.generation:
            return False  # what is known is of a rebuild before
        if not caught_up(old, new) or not self._has_read(rebuild, built, old, new, rebuilds):
            return False
        self._complete[key] = newest_version(table_path(self._paths, beside(stream)))
        return True

    def _has_read(
        self, rebuild: Rebuild, built: StreamSpec | None, old: Actual, new: Actual, rebuilds: Mapping[str, Rebuild]
    ) -> bool:
        """Whether a new generation has read what those above it had written when they were complete; without such,
        what was there when it began, or as far as the old one.

        An old one that does not run, or has read nothing yet, is no measure.
        """
        streamed = above(built, TableStreamInput)
        if not streamed:
            reads = old.state is StreamState.RUNNING and old.batch_id is not None
            return has_read_since(new, rebuild.started_at) or (reads and self._settled(rebuild, built, streamed)[0])
        places = new.offsets if new.generation == rebuild.generation else {}
        for each in streamed:
            until = self._complete.get((each, rebuilds[each].generation))
            name = beside(each)
            if has_changes_after(table_path(self._paths, name), normalised(places.get(name)), until):
                return False
        return True

    def _missing(self, group: Sequence[Seen]) -> set[str]:
        """Streams whose new rows somebody of the group reads, and whose rebuilds are not part of it: they begin anew,
        or the rebuild that reads them ends."""
        read = {stream for each in group for stream in above(self._built(each.rebuild))}
        return read - {each.stream for each in group}

    def _seen(
        self,
        stream: str,
        rebuilds: Mapping[str, Rebuild],
        actual: Mapping[str, Actual],
        open_for: set[str],
        *,
        engine: bool,
    ) -> Seen:
        rebuild, names = rebuilds[stream], (stream, beside(stream))
        old, new = (actual.get(name) or Actual(stream=name) for name in names)
        busy = any(name in open_for for name in names)
        built = self._built(rebuild)
        streamed = above(built, TableStreamInput)
        level, drained = (
            self._settled(rebuild, built, streamed) if rebuild.phase is RebuildPhase.SETTLING else (False, True)
        )
        return Seen(
            rebuild, old, new, engine, busy, level, self._answer(rebuild), above=streamed,
            looked_up=above(built, TableInput), drained=drained,
            caught_up=caught_up(old, new) and self._is_complete(stream, rebuilds, actual),
            window=built.trigger.time_window_ms / 1000 if built and streamed else 0.0,
        )  # fmt: skip

    def _take(self, group: Sequence[Rebuild], step: Step, now: float) -> None:
        first = group[0]
        match step:
            case Advance(phase, streams):
                if self._store.advance_rebuilds(group, streams, phase, now=now):
                    for rebuild in group:
                        if rebuild.stream in streams:
                            self._say(f"{rebuild.stream}: rebuild to generation {rebuild.generation} is {phase.value}")
            case Ask(kind):
                number = self._store.submit(kind, first.stream, _payload(kind, group), now=now)
                self._asked[first.stream] = (first.phase, number)
            case TakeOver():
                if self._store.take_over(group, now=now):
                    self._taken_over(group)
            case GiveUp(stream, code, message):
                if self._store.give_up(stream, code=code, message=message, now=now):
                    told = (message.splitlines() or [""])[0]
                    others = [each.stream for each in group if each.stream != stream]
                    with_it = f", and with it that of {', '.join(others)}" if others else ""
                    self._say(f"{stream}: the rebuild is given up{with_it}, the old generation goes on: {told[:300]}")
            case Finish():
                self._store.finish_rebuild(first)
                self._asked.pop(first.stream, None)
                self._specs.pop((first.stream, first.generation), None)
                self._complete.pop((first.stream, first.generation), None)

    def _taken_over(self, group: Sequence[Rebuild]) -> None:
        for rebuild in group:
            self._say(f"{rebuild.stream}: generation {rebuild.generation} has taken over")
            spec = StreamSpec.from_json(rebuild.spec_json)
            restart_runs(self._store, looking_up(self._store, spec.output.shown, hidden=True))

    def _answer(self, rebuild: Rebuild) -> Command | None:
        phase, number = self._asked.get(rebuild.stream, (None, 0))
        return self._store.command(number) if phase is rebuild.phase else None

    def _built(self, rebuild: Rebuild) -> StreamSpec | None:
        """The spec of the stream that builds the new generation, while it is there."""
        key = (rebuild.stream, rebuild.generation)
        if key not in self._specs:
            want = self._store.find_desired(beside(rebuild.stream))
            spec = spec_of(want) if want is not None else None
            if spec is None:
                return None
            self._specs[key] = spec
        return self._specs[key]

    def _settled(self, rebuild: Rebuild, built: StreamSpec | None, streamed: Collection[str]) -> tuple[bool, bool]:
        """Whether the new generation has read what the old one has, and all that is in the hidden tables that it reads
        as streams."""
        old = self._store.desired(rebuild.stream)
        before = spec_of(old)
        if built is None:
            return True, True
        read = self._read(rebuild, built)
        left = [] if built.is_full else [beside(stream) for stream in streamed]
        drained = not any(has_changes_after(table_path(self._paths, name), read.get(name)) for name in left)
        if before is None:
            return True, drained  # of another version of Penstock: what it has read cannot be compared
        checkpoint = self._paths.checkpoint(old.stream, old.checkpoint_id)
        passed = self._places(checkpoint, before.inputs)
        new = read_from(self._paths.checkpoint(rebuild.stream, rebuild.checkpoint_id))
        moved = others(read_from(checkpoint), new)  # another cluster gives other offsets
        return level(passed, read, [each.relation for each in built.inputs if each.relation not in moved]), drained

    def _read(self, rebuild: Rebuild, built: StreamSpec) -> dict[str, Offset]:
        """Up to where the new generation has read: where it began counts, too."""
        checkpoint = self._paths.checkpoint(rebuild.stream, rebuild.checkpoint_id)
        return initial(checkpoint, built.inputs) | self._places(checkpoint, built.inputs)

    def _places(self, checkpoint: Path, inputs: Sequence[Input]) -> dict[str, Offset]:
        """Where a checkpoint stands in its inputs. Tables are known by their ids: the order of sources is Spark's."""
        found = committed(checkpoint, [each for each in inputs if isinstance(each, KafkaInput)])
        in_tables = committed_in_tables(checkpoint)
        for name in [each.relation for each in inputs if isinstance(each, TableStreamInput)]:
            place = in_tables.get(table_id(table_path(self._paths, name)) or "")
            if place is not None:
                found[name] = place
        return found


def above(spec: StreamSpec | None, *kinds: type[Input]) -> frozenset[str]:
    """The streams whose new rows a new generation reads, by inputs of these kinds, or of any."""
    inputs = [each for each in spec.inputs if not kinds or isinstance(each, kinds)] if spec is not None else []
    return frozenset(original(each.relation) for each in inputs if is_beside(each.relation))


def upstream_first(group: Sequence[Seen]) -> list[Seen]:
    """A group in the order in which its rows go through it: what is read or looked up comes before its readers."""
    left, done = list(group), list[Seen]()
    while left:
        names = {each.stream for each in left}
        ready = [each for each in left if not (each.above | each.looked_up) & names] or left
        done += ready
        left = [each for each in left if each not in ready]
    return done


def _payload(kind: str, group: Sequence[Rebuild]) -> dict[str, Any]:
    if kind == "discard":
        return {"spec": group[0].spec_json, "checkpoint": group[0].checkpoint_id, "phase": group[0].phase.value}
    return {
        "members": [{"stream": each.stream, "spec": each.spec_json, "checkpoint": each.checkpoint_id} for each in group]
    }
