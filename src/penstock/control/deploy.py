"""Deploying a stream: from a compiled spec to the desired state.

Rules
- One deployment at a time in a project; a second waits for its turn, then says who is in the way. The turn of a process
  that died is over at once.
- An unchanged definition changes nothing and waits for nobody; brokers that have another address now are asked whether
  they are the same cluster (`control.clusters`). Where its lines stand in the model file by now is
  written down, and a running stream is told: its next error names them.
- The engine says yes to a spec before it becomes the desired state. When it says no, nothing was changed.
- A change that the stream's state or rows do not survive needs a word from the user: --full-refresh, or the model's
  `on_configuration_change: apply`. `continue` leaves the deployed version running and says so; `fail`, which holds
  without a word, is an error that says what the rebuild would cost.
- A rebuild reads the inputs from their beginning, with a checkpoint of its own, beside the deployed generation, which
  goes on until the new one takes over (`control.rebuilds`). A deployment of another definition ends it.
- Streams that read the table as a stream have to be rebuilt in the same run. Each new generation reads the new rows of
  the one above it, and they take over together. When one of them cannot be rebuilt, none is.
- A new stream on a table that is being rebuilt starts when the rebuild is over; so does a changed one whose query
  needs the new columns.
- A stream in real time has no table to be built beside: it is stopped, and the new generation takes its topic.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from penstock.compiler.plan import Verdict, told_anew
from penstock.compiler.quarantine import quarantines
from penstock.compiler.spec import KafkaInput, StreamSpec, TableStreamInput
from penstock.compiler.statement import same_tokens
from penstock.control.beside import reading_beside, spec_beside
from penstock.control.clusters import Asked, moved_sources
from penstock.control.columns import Columns, NotIncrementalError, ask_columns
from penstock.control.deployed import coming, deployed_streams, is_rebuilt, looking_up, spec_of
from penstock.control.inputs import check_inputs
from penstock.control.planning import FAIL, Model, Planned, plan_model, readers, selected
from penstock.control.quarantine import deploy_quarantine
from penstock.control.rebuild_cost import CostMeter, RebuildCost
from penstock.control.requests import BUSY_TIMEOUT, run_command, turn
from penstock.control.streams import await_settled, drop_stream, restart_runs, restart_stream, start_stream, stop_stream
from penstock.control.waiting import Tell, silent
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import (
    CHANGE_NEEDS_REBUILD,
    ENGINE_DOWN,
    ENGINE_LOST,
    MODEL_UPDATING_INPUT,
    REBUILD_READERS,
)
from penstock.kafka.topic_watch import TopicWatch
from penstock.paths import ProjectPaths, beside, shown
from penstock.project.model import is_refreshed
from penstock.project.profile import read_settings
from penstock.store import Desired, LinkKind, Store, StreamState, Wanted

__all__ = [
    "Deployment",
    "check_inputs",
    "deploy",
    "drop_stream",
    "restart_stream",
    "run_command",
    "start_stream",
    "stop_stream",
]


BESIDE = "it is built beside"
DEAF = (
    "'penstock plan' says what it costs; on_configuration_change: apply computes the table anew. --full-refresh does "
    "not: the model's full_refresh is false."
)
TAKEOVER = 900.0  # seconds for rebuilds that are about to take over to do so


@dataclass(frozen=True)
class Deployment:
    """What became of a spec."""

    stream: str
    generation: int
    verdict: str  # NEW | NO-OP | HOT | RESTART | REBUILD | REFUSED
    checkpoint: str
    reasons: tuple[str, ...]
    changed: bool
    beside: bool = False  # the deployed generation goes on until this one has caught up


def deploy(
    store: Store,
    paths: ProjectPaths,
    spec: StreamSpec,
    *,
    full_refresh: bool = False,
    own_refresh: bool | None = None,
    on_change: str = FAIL,
    together: Collection[str] = (),
    progress: Tell | None = None,
    busy_timeout: float = BUSY_TIMEOUT,
) -> Deployment:
    """Make the spec the desired state of its stream.

    `own_refresh` is the `full_refresh` of the model's config, which wins over that of the run; `together` are the
    streams that the same run rebuilds.
    """
    full_refresh = is_refreshed(own_refresh, run=full_refresh)
    tell = progress or silent
    asked = Asked()
    with turn(store, tell, busy_timeout):

        def run(spec: StreamSpec) -> Deployment:
            task = _Deploy(store, paths, spec, full_refresh, own_refresh, on_change, frozenset(together), tell, asked)
            while True:
                try:
                    return task.run()
                except _TakenOverError:
                    tell(f"{spec.name}: a rebuild has taken over; looking again")  # it is compared with another one now

        try:
            spec = settled(store, spec)
            try:
                return run(spec)
            except NotIncrementalError as problem:
                return run(spec.as_full(problem.reason))
        except PenstockError as problem:
            _give_up_those_above(store, spec.name, problem)
            raise


def _give_up_those_above(store: Store, stream: str, problem: PenstockError) -> None:
    """Rebuilds that were to take over together with that of a stream, which cannot be rebuilt.

    They wait for one that nobody has confirmed, or that nobody could be asked about.
    """
    if is_rebuilt(store.rebuild(stream)) or problem.kind in (CHANGE_NEEDS_REBUILD, ENGINE_DOWN, ENGINE_LOST):
        return
    for link in store.rebuild_links():
        if link.reader == stream and link.kind is LinkKind.TOGETHER:
            told = f"'{stream}', which reads it, could not be rebuilt: {shown(problem.message)}"
            store.give_up(link.upstream, code=problem.code, message=told)


class _TakenOverError(Exception):
    """A rebuild took over while the deployment was planned."""


def make_table(store: Store, spec: StreamSpec) -> tuple[str, ...]:
    """Make the table of a spec and nothing else; how its columns differ from those of a table that is there."""
    spec = settled(store, spec)
    # The rows of a stream that runs are not touched without deploying it.
    dry = spec.output.on_schema_change == "sync_all_columns" and store.find_desired(spec.name) is not None
    try:
        return ask_columns(store, spec, dry=dry).changes
    except NotIncrementalError as problem:
        return ask_columns(store, spec.as_full(problem.reason), dry=dry).changes


def settled(store: Store, spec: StreamSpec) -> StreamSpec:
    """The spec as far as the deployed streams decide it: whether an input turned out to be recomputed as a whole, and
    whether Spark has refused the same query before."""
    if spec.is_full:
        return spec
    for item in spec.inputs:
        above = coming(store, item.relation) if isinstance(item, TableStreamInput) else None
        if above is not None and above.is_full:
            if spec.refresh_mode == "incremental":
                raise MODEL_UPDATING_INPUT.error(f"{item.relation} is recomputed as a whole.", at=Location(spec.path))
            return spec.as_full(f"{item.relation} is recomputed as a whole.")
    old = store.find_desired(spec.name)
    before = spec_of(old) if old is not None else None
    if (
        before is not None
        and before.refused
        and spec.refresh_mode == "auto"
        and same_tokens(before.sql, spec.whole_sql)
    ):
        return spec.as_full(str(before.reason))
    return spec


@dataclass(frozen=True)
class _Deploy:
    store: Store
    paths: ProjectPaths
    spec: StreamSpec
    full_refresh: bool
    own_refresh: bool | None
    on_change: str
    together: frozenset[str]
    tell: Tell
    asked: Asked

    def run(self) -> Deployment:
        if self.full_refresh or not self._is_being_built():
            await_settled(self.store, self.spec.name, self.tell, TAKEOVER)
        spec, old = self.spec, self.store.find_desired(self.spec.name)
        planned = self._planned()
        if old is None:
            check_inputs(spec, self.paths)
            rebuilt = self._rebuilt_inputs()
            ask_columns(self.store, reading_beside(spec, rebuilt), full_refresh=self.full_refresh, dry=False)
            return self._waiting(planned, rebuilt, new_checkpoint=True)
        if planned.verdict is Verdict.NO_OP:
            if not self._is_being_built():
                self._no_rebuild()
            self._quarantines()
            self._retold(old)
            reasons = (*planned.reasons, *_left_alone(self.store, old))
            return Deployment(spec.name, old.generation, planned.verdict.value, old.checkpoint_id, reasons, False)
        if planned.verdict is Verdict.HOT:
            self._no_rebuild()
            return self._done(planned, self._amended(old))
        if planned.verdict is Verdict.RESTART:
            check_inputs(spec, self.paths)
            # What is being rebuilt may take over at any moment: that ends before the table is touched.
            ends = is_rebuilt(self.store.rebuild(spec.name))
            becomes, needed = self._prepared(dry=ends)
            planned = self._planned(becomes)
            if planned.verdict is Verdict.RESTART:
                self._no_rebuild()
                if ends:
                    becomes, needed = self._prepared(dry=False)
                made = self._waiting(planned, needed, new_checkpoint=False)
                if becomes.replaced:
                    restart_runs(self.store, looking_up(self.store, old.stream))  # each holds the old columns in hand
                return made
        return self._rebuilt(planned, old)

    def _planned(self, columns: Columns | None = None) -> Planned:
        moved = moved_sources(self.store, self.paths, self.spec, self.asked)
        model = Model(self.spec, self.on_change, full_refresh=self.own_refresh, moved=moved)
        if columns is not None:
            model = replace(model, columns=columns.changes, followed=columns.followed)
        deployed = deployed_streams(self.store)
        return plan_model(model, deployed.get(self.spec.name), full_refresh=self.full_refresh)

    def _prepared(self, *, dry: bool) -> tuple[Columns, tuple[str, ...]]:
        """How the columns differ from the table's, and the inputs that the query needs as they will be."""
        try:
            return ask_columns(self.store, self.spec, dry=dry), ()
        except PenstockError:
            rebuilt = self._rebuilt_inputs()
            if not rebuilt:
                raise
        return ask_columns(self.store, reading_beside(self.spec, rebuilt), dry=dry), rebuilt

    def _waiting(self, planned: Planned, inputs: Collection[str], *, new_checkpoint: bool) -> Deployment:
        """Make the spec the desired state; it starts when the rebuilds of these inputs are over."""
        if inputs and not self.store.start_after(self.spec.name, inputs):
            raise _TakenOverError
        made = self._done(planned, self._recorded(planned, new_checkpoint=new_checkpoint))
        waits = (f"it starts when the rebuild of {_listed(inputs)} is over",) if inputs else ()
        return replace(made, reasons=(*made.reasons, *waits))

    def _rebuilt_inputs(self) -> tuple[str, ...]:
        """The tables that it reads and that are being rebuilt; one that is about to take over is waited for."""
        names = [each.relation for each in self.spec.inputs if not isinstance(each, KafkaInput)]
        for name in names:
            await_settled(self.store, name, self.tell, TAKEOVER, open_to_readers=True)
        found = [name for name in names if is_rebuilt(self.store.rebuild(name))]
        views = [name for name in found if (spec := coming(self.store, name)) is not None and spec.output.view]
        return tuple(name for name in found if name not in views)  # of a source table, the old rows are read until then

    def _amended(self, old: Desired) -> Desired:
        made = self.store.amend(self.spec.name, self.spec.to_json(), self.spec.hash)
        if self.store.actual(old.stream).state is StreamState.RUNNING:
            run_command(self.store, "adjust", old.stream, {})
        return made

    def _retold(self, old: Desired) -> None:
        before = spec_of(old)
        found = told_anew(before, self.spec) if before is not None else None
        if found is None or found == before:
            return
        self.store.amend(old.stream, found.to_json(), old.spec_hash)
        if self.store.actual(old.stream).state is StreamState.RUNNING:
            self.store.submit("adjust", old.stream)  # an engine that is away reads it when it starts the stream

    def _quarantines(self) -> None:
        for each in quarantines(self.spec):
            deploy_quarantine(self.store, self.paths, each, self.tell, self.asked)

    def _recorded(self, planned: Planned, *, new_checkpoint: bool, wanted: Wanted | None = None) -> Desired:
        self._quarantines()  # before the stream passes what it is to keep
        return self.store.deploy(
            self.spec.name,
            self.spec.to_json(),
            self.spec.hash,
            verdict=planned.verdict.value,
            new_checkpoint=new_checkpoint,
            wanted=wanted,
        )

    def _done(self, planned: Planned, made: Desired) -> Deployment:
        return Deployment(
            self.spec.name, made.generation, planned.verdict.value, made.checkpoint_id, planned.reasons, changed=True
        )

    # -- rebuild ------------------------------------------------------------------------------------------------------
    def _rebuilt(self, planned: Planned, old: Desired) -> Deployment:
        why = "; ".join(planned.reasons)
        at = Location(self.spec.path)
        if planned.kept:
            kept = f"generation {old.generation} goes on: on_configuration_change is 'continue'"
            reasons = (*planned.reasons, kept)
            return Deployment(
                old.stream, old.generation, planned.verdict.value, old.checkpoint_id, reasons, changed=False
            )
        if not planned.confirmed:
            cost = measured(self.paths, self.spec, old, self.asked)
            told = f" It {cost.words()}." if cost and cost.inputs else ""
            raise CHANGE_NEEDS_REBUILD.error(
                f"The change of '{old.stream}' needs a rebuild: {why}.{told}",
                at=at,
                hint=None if planned.heeds_flag else DEAF,
            )
        reading = readers(old.stream, deployed_streams(self.store)) | self._have_looked_up()
        behind = reading - self.together
        if behind:
            raise REBUILD_READERS.error(
                f"'{old.stream}' is to be rebuilt ({why}), and {_listed(behind)} would not be.",
                at=at,
                hint=f"Rebuild them in the same run: {selected(old.stream, flag=planned.heeds_flag)}.",
            )
        check_inputs(self.spec, self.paths)
        before = spec_of(old)
        if self.spec.is_real_time or (before is not None and before.is_real_time):
            self._end_rebuild()
            return self._done(planned, self._made_anew(planned, old))
        return self._begun(planned, old, reading)

    def _begun(self, planned: Planned, old: Desired, reading: Collection[str]) -> Deployment:
        rebuilt = self._rebuilt_inputs()
        # A model that Spark rejects is found out before anything is given up.
        read = reading_beside(self.spec, rebuilt)
        ask_columns(self.store, read, full_refresh=True, dry=True)
        again = is_rebuilt(self.store.rebuild(self.spec.name))
        before = spec_of(old)
        if before is not None and self.spec.has_table and not before.has_table:
            ask_columns(self.store, read, full_refresh=False, dry=False)  # empty, but there to be read
        for stream in (self.spec.name, *reading):  # the readers begin anew in this run, on the new rows
            self._end_rebuild(stream, alone=True)
        aside = spec_beside(self.spec, rebuilt)
        ask_columns(self.store, aside, full_refresh=True, dry=False)
        self._quarantines()
        made = self.store.begin_rebuild(
            self.spec.name,
            self.spec.to_json(),
            self.spec.hash,
            beside_json=aside.to_json(),
            beside_hash=aside.hash,
            verdict=planned.verdict.value,
            inputs=rebuilt,
            readers=reading,
            again=again,
        )
        if made is None:
            raise _TakenOverError
        # What stays linked to it reads a hidden table that was made anew.
        linked = {each.reader for each in self.store.rebuild_links() if each.upstream == self.spec.name}
        restart_runs(self.store, [beside(each) for each in linked if is_rebuilt(self.store.rebuild(each))])
        reasons = (*planned.reasons, f"{BESIDE} generation {old.generation}, which goes on until it has caught up")
        return Deployment(
            old.stream, made.generation, planned.verdict.value, made.checkpoint_id, reasons, changed=True, beside=True
        )

    def _have_looked_up(self) -> set[str]:
        """Streams whose rebuilds look up rows of the one under way, which begins anew: what they made of them stays."""
        if not is_rebuilt(self.store.rebuild(self.spec.name)):
            return set()
        linked = {each.reader for each in self.store.rebuild_links() if each.upstream == self.spec.name}
        specs = {each: coming(self.store, each) for each in linked if is_rebuilt(self.store.rebuild(each))}
        return {each for each, spec in specs.items() if spec is not None and not spec.is_full}

    def _is_being_built(self) -> bool:
        rebuild = self.store.rebuild(self.spec.name)
        return rebuild is not None and is_rebuilt(rebuild) and rebuild.spec_hash == self.spec.hash

    def _end_rebuild(self, stream: str | None = None, *, alone: bool = False) -> None:
        """What is deployed now takes the place of a rebuild that is under way."""
        name = stream or self.spec.name
        ended = self.store.end_rebuild(name, alone=alone)
        await_settled(self.store, name, self.tell, TAKEOVER)
        if not ended:
            raise _TakenOverError

    def _no_rebuild(self) -> None:
        """It goes on with the checkpoint that it has. Rebuilds may wait for it, because a version of it that is given
        up read them; they do no longer."""
        self._end_rebuild()
        links = self.store.rebuild_links()
        above = {each.upstream for each in links if each.reader == self.spec.name and each.kind is LinkKind.TOGETHER}
        self.store.unlink(self.spec.name, [each for each in above if not self.spec.streams_from(each)])

    def _made_anew(self, planned: Planned, old: Desired) -> Desired:
        # A model that Spark rejects is found out while the old version still runs.
        ask_columns(self.store, self.spec, full_refresh=True, dry=True)
        try:
            stop_stream(self.store, old.stream, progress=self.tell)
            ask_columns(self.store, self.spec, full_refresh=True, dry=False)
        except BaseException:  # Ctrl-C, too, leaves it as it was
            self.store.set_wanted(old.stream, old.wanted)
            raise
        made = self._recorded(planned, new_checkpoint=True, wanted=Wanted.RUNNING)
        restart_runs(self.store, looking_up(self.store, old.stream))  # each holds the table that was there in hand
        return made


def measured(paths: ProjectPaths, spec: StreamSpec, old: Desired, asked: Asked) -> RebuildCost | None:
    """What a rebuild would read; None when the project has no settings yet."""
    topics = TopicWatch()
    try:
        return CostMeter(paths, read_settings(paths).kafka, topics, asked).measure(spec, old)
    except PenstockError:
        return None  # the error that this is part of says what matters
    finally:
        topics.close()


def _listed(names: Collection[str]) -> str:
    return " and ".join(f"'{name}'" for name in sorted(names))


def _left_alone(store: Store, old: Desired) -> tuple[str, ...]:
    """What a person who deploys an unchanged stream should know of it; a quarantine ends here."""
    if old.wanted is Wanted.STOPPED:
        return ("it is stopped: 'penstock start' starts it",)
    if store.actual(old.stream).state is StreamState.QUARANTINED:
        store.set_wanted(old.stream, Wanted.RUNNING)
        return ("it was quarantined, and is tried again",)
    return ()
