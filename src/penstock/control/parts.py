"""Whether what streams need from outside answers: brokers and schema registries.

Rules
- The supervisor looks every few seconds and writes it into the store; sensors and people read it there.
- Each look has a deadline; a part that does not answer holds up nobody but this thread.
- A part is named by what a person knows it by, never with a credential.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from pydantic import ValidationError

from penstock.compiler.spec import KafkaInput, StreamSpec
from penstock.control.inputs import access
from penstock.errors import PenstockError
from penstock.kafka.admin import resolve_bootstrap
from penstock.kafka.security import Value, effective
from penstock.kafka.topic_watch import TopicWatch
from penstock.paths import ProjectPaths
from penstock.project.profile import KafkaSettings, SchemaRegistrySettings, read_settings
from penstock.registry.address import URL
from penstock.registry.address import access as registry_access
from penstock.registry.client import Registry
from penstock.store import Desired, Part, Store

EVERY = 5.0
BROKER = "broker"
REGISTRY = "registry"
REGISTRY_TIMEOUT = 2.0

Options = tuple[tuple[str, Value], ...]
Ask = Callable[[str, Options], object]  # raises PenstockError when there is no answer


@dataclass(frozen=True)
class Need:
    """Something outside that streams need, and how to find out whether it answers."""

    kind: str
    name: str
    ask: Callable[[], object]  # raises PenstockError when there is no answer


def look(needs: Iterable[Need], *, now: float | None = None) -> list[Part]:
    """Every need, asked once."""
    now = time.time() if now is None else now
    found: dict[str, Part] = {}
    for need in needs:
        if need.name not in found:
            found[need.name] = _asked(need, now)
    return list(found.values())


def brokers(desired: Iterable[Desired], kafka: KafkaSettings, paths: ProjectPaths, ask: Ask) -> Iterator[Need]:
    """Every broker that the profile or a deployed stream names."""
    if kafka.embedded or kafka.bootstrap:
        try:
            bootstrap = resolve_bootstrap(None, kafka.bootstrap, paths)
            options = tuple(sorted(effective({}, kafka.options, own_broker=False, base=paths.project).items()))
            yield Need(BROKER, bootstrap, partial(ask, bootstrap, options))
        except PenstockError as problem:
            yield _unknown(BROKER, "embedded" if kafka.embedded else str(kafka.bootstrap), problem)
    for want in desired:
        for item in _kafka_inputs(want):
            if item.bootstrap is None:
                continue  # the profile's, which is above
            try:
                broker = access(item, kafka, paths)
            except PenstockError as problem:
                yield _unknown(BROKER, item.bootstrap, problem)
            else:
                yield Need(
                    BROKER, broker.bootstrap, partial(ask, broker.bootstrap, tuple(sorted(broker.options.items())))
                )


def registries(
    desired: Iterable[Desired], profile: SchemaRegistrySettings, paths: ProjectPaths, ask: Ask
) -> Iterator[Need]:
    """Every schema registry that the profile or a deployed stream names."""
    own = [dict(item.registry) for want in desired for item in _kafka_inputs(want, '"registry":') if item.registry]
    configured = profile.embedded or URL in profile.options
    for options in [*([{}] if configured else []), *own]:
        try:
            found = registry_access(options, profile.options, paths)
        except PenstockError as problem:
            yield _unknown(REGISTRY, "embedded registry", problem)
        else:
            yield Need(REGISTRY, found.url, partial(ask, found.url, tuple(sorted(found.options.items()))))


def ask_registry(url: str, options: Options) -> None:
    """One small question, with the credentials that streams use."""
    Registry(url, dict(options), timeout=REGISTRY_TIMEOUT, retries=0).check()


def _unknown(kind: str, name: str, problem: PenstockError) -> Need:
    def ask() -> object:
        raise problem

    return Need(kind, name, ask)


def _asked(need: Need, now: float) -> Part:
    try:
        need.ask()
    except PenstockError as problem:
        return Part(need.name, need.kind, ok=False, detail=problem.message, at=now)
    return Part(need.name, need.kind, ok=True, detail="", at=now)


def _kafka_inputs(want: Desired, field: str = '"bootstrap":') -> list[KafkaInput]:
    if field not in want.spec_json:
        return []
    try:
        spec = StreamSpec.from_json(want.spec_json)
    except ValidationError:
        return []  # deployed by another version; the stream's own state says so
    return [item for item in spec.inputs if isinstance(item, KafkaInput)]


class PartsWatcher:
    """A thread that looks again and again and writes what it saw into the store."""

    def __init__(self, paths: ProjectPaths, store: Store, *, say: Callable[[str], None], every: float = EVERY) -> None:
        self._paths = paths
        self._store = store
        self._say = say
        self._every = every
        self._told: dict[str, str] = {}
        self._trouble: str | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        topics = TopicWatch()
        while not self._ending.is_set():
            try:
                settings, desired = read_settings(self._paths), self._store.all_desired()
                needs = brokers(desired, settings.kafka, self._paths, topics.names)
                needed = registries(desired, settings.schema_registry, self._paths, ask_registry)
                seen = look(itertools.chain(needs, needed))
                self._store.record_parts(seen)
                self._tell(seen)
            except (PenstockError, OSError) as problem:
                if self._trouble != str(problem):
                    self._say(f"brokers and registries are not looked at: {problem}")
                self._trouble = str(problem)
            else:
                self._trouble = None
            self._ending.wait(self._every)
        topics.close()

    def _tell(self, seen: list[Part]) -> None:
        """A line for each change."""
        now = {part.name: part.detail for part in seen}
        for name, detail in now.items():
            if detail and self._told.get(name) != detail:
                self._say(f"{name}: {detail}")
            elif not detail and self._told.get(name):
                self._say(f"{name} answers again")
        self._told = now
