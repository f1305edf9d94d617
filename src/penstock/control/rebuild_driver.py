"""Carrying out what `rebuilds.next_step` decided.

Rules
- A step is written into the store before the next one is decided: a supervisor that dies is followed by one that goes
  on in the same phase.
- What was asked of the engine is asked again by a supervisor that does not know of it: the engine does it once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.checkpoint.offsets import Offset, committed, initial
from penstock.compiler.spec import StreamSpec
from penstock.control.rebuilds import Advance, Ask, Finish, GiveUp, Seen, Step, TakeOver, level, next_step
from penstock.paths import ProjectPaths, beside
from penstock.store import Actual, Command, Rebuild, RebuildPhase, Store


class RebuildDriver:
    """Drives the rebuilds of a project, one step in each look."""

    def __init__(self, paths: ProjectPaths, store: Store, say: Callable[[str], None]) -> None:
        self._paths = paths
        self._store = store
        self._say = say
        self._asked: dict[str, tuple[RebuildPhase, int]] = {}  # stream -> the command of this phase

    def drive(self, rebuilds: Mapping[str, Rebuild], actual: Mapping[str, Actual], *, engine: bool, now: float) -> bool:
        """Take the next step of each rebuild; True when one was taken, and what is wanted has changed."""
        if not rebuilds:
            return False
        open_for = {command.stream for command in self._store.open_commands()}
        moved = False
        for stream, rebuild in rebuilds.items():
            names = (stream, beside(stream))
            old, new = (actual.get(name) or Actual(stream=name) for name in names)
            busy = any(name in open_for for name in names)
            seen = Seen(rebuild, old, new, engine, busy, self._level(rebuild), self._answer(rebuild))
            step = next_step(seen, now)
            if step is not None:
                self._take(rebuild, step, now)
                moved = True
        return moved

    def _take(self, rebuild: Rebuild, step: Step, now: float) -> None:
        stream, generation = rebuild.stream, rebuild.generation
        match step:
            case Advance(phase):
                if self._store.advance_rebuild(rebuild, phase, now=now):
                    self._say(f"{stream}: rebuild to generation {generation} is {phase.value}")
            case Ask(kind):
                number = self._store.submit(kind, stream, self._payload(rebuild), now=now)
                self._asked[stream] = (rebuild.phase, number)
            case TakeOver():
                if self._store.take_over(rebuild, now=now):
                    self._say(f"{stream}: generation {generation} has taken over")
            case GiveUp(code, message):
                told = {"error_code": code, "error": message}
                if self._store.advance_rebuild(rebuild, RebuildPhase.ENDING, now=now, **told):
                    first = (message.splitlines() or [""])[0]
                    self._say(f"{stream}: the rebuild is given up, the old generation goes on: {first[:300]}")
            case Finish():
                self._store.finish_rebuild(rebuild)
                self._asked.pop(stream, None)

    def _payload(self, rebuild: Rebuild) -> dict[str, Any]:
        return {"spec": rebuild.spec_json, "checkpoint": rebuild.checkpoint_id, "phase": rebuild.phase.value}

    def _answer(self, rebuild: Rebuild) -> Command | None:
        phase, number = self._asked.get(rebuild.stream, (None, 0))
        return self._store.command(number) if phase is rebuild.phase else None

    def _level(self, rebuild: Rebuild) -> bool:
        if rebuild.phase is not RebuildPhase.SETTLING:
            return False
        old = self._store.desired(rebuild.stream)
        spec, before = StreamSpec.from_json(rebuild.spec_json), StreamSpec.from_json(old.spec_json)
        passed = committed(self._paths.checkpoint(old.stream, old.checkpoint_id), before.inputs)
        return level(passed, self._read(rebuild, spec), [item.relation for item in spec.inputs])

    def _read(self, rebuild: Rebuild, spec: StreamSpec) -> dict[str, Offset]:
        """Up to where the new generation has read: where it began counts, too."""
        checkpoint = self._paths.checkpoint(rebuild.stream, rebuild.checkpoint_id)
        return initial(checkpoint, spec.inputs) | committed(checkpoint, spec.inputs)
