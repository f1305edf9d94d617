"""Deploying a stream: from a compiled spec to the desired state.

Rules
- One deployment at a time in a project; a second waits for its turn, then says who is in the way. The turn of a process
  that died is over at once.
- An unchanged definition changes nothing and waits for nobody. Where its lines stand in the model file by now is
  written down, and a running stream is told: its next error names them.
- The engine says yes to a spec before it becomes the desired state. When it says no, nothing was changed.
- A change that the stream's state or rows do not survive needs a word from the user: --full-refresh, or the model's
  `on_configuration_change: apply`. `continue` leaves the deployed version running and says so; `fail`, which holds
  without a word, is an error that says what the rebuild would cost.
- A rebuild reads the inputs from their beginning, with a checkpoint of its own, beside the deployed generation, which
  goes on until the new one takes over (`control.rebuilds`). A deployment of another definition ends it.
- Streams that read the table as a stream have to be rebuilt in the same run. Such a chain is not rebuilt beside: each
  stream is stopped and its table made anew, upstream first. So is a source table, and a table that is published.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from penstock.compiler.plan import Verdict, told_anew
from penstock.compiler.quarantine import quarantines
from penstock.compiler.spec import StreamSpec, TableStreamInput
from penstock.compiler.statement import same_tokens
from penstock.control.columns import Columns, NotIncrementalError, ask_columns
from penstock.control.deployed import deployed_streams, looking_up, spec_of
from penstock.control.inputs import check_inputs
from penstock.control.planning import FAIL, Model, Planned, plan_model, readers
from penstock.control.quarantine import deploy_quarantine
from penstock.control.rebuild_cost import CostMeter, RebuildCost
from penstock.control.requests import BUSY_TIMEOUT, run_command, turn
from penstock.control.streams import await_settled, drop_stream, restart_runs, restart_stream, start_stream, stop_stream
from penstock.control.waiting import Tell, silent
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import CHANGE_NEEDS_REBUILD, MODEL_UPDATING_INPUT, REBUILD_READERS, REBUILD_UNDER_WAY
from penstock.kafka.topic_watch import TopicWatch
from penstock.paths import ProjectPaths, beside
from penstock.project.profile import read_settings
from penstock.store import Desired, RebuildPhase, Store, StreamState, Wanted

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
    on_change: str = FAIL,
    together: Collection[str] = (),
    read_in_run: bool = False,
    progress: Tell | None = None,
    busy_timeout: float = BUSY_TIMEOUT,
) -> Deployment:
    """Make the spec the desired state of its stream.

    `together` are the streams that the same run rebuilds; `read_in_run` says that it deploys readers of this one.
    """
    tell = progress or silent
    with turn(store, tell, busy_timeout):
        spec = settled(store, spec)

        def run(spec: StreamSpec) -> Deployment:
            task = _Deploy(store, paths, spec, full_refresh, on_change, frozenset(together), read_in_run, tell)
            try:
                return task.run()
            except _TakenOverError:
                return task.run()  # what it is compared with is another one now

        try:
            return run(spec)
        except NotIncrementalError as problem:
            return run(spec.as_full(problem.reason))


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
        above = store.find_desired(item.relation) if isinstance(item, TableStreamInput) else None
        if above is not None and StreamSpec.from_json(above.spec_json).is_full:
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
    on_change: str
    together: frozenset[str]
    read_in_run: bool
    tell: Tell

    def run(self) -> Deployment:
        await_settled(self.store, self.spec.name, self.tell)
        self._refuse_rebuilt_inputs()
        spec, old = self.spec, self.store.find_desired(self.spec.name)
        planned = self._planned()
        if old is None:
            check_inputs(spec, self.paths)
            _prepare(self.store, spec, full_refresh=self.full_refresh)
            return self._done(planned, self._recorded(planned, new_checkpoint=True))
        if planned.verdict is Verdict.NO_OP:
            if not self._is_being_built():
                self._end_rebuild()
            self._quarantines()
            self._retold(old)
            reasons = (*planned.reasons, *_left_alone(self.store, old))
            return Deployment(spec.name, old.generation, planned.verdict.value, old.checkpoint_id, reasons, False)
        if planned.verdict is Verdict.HOT:
            self._end_rebuild()
            return self._done(planned, self._amended(old))
        if planned.verdict is Verdict.RESTART:
            check_inputs(spec, self.paths)
            becomes = ask_columns(self.store, spec, dry=False)
            planned = self._planned(becomes)
            if planned.verdict is Verdict.RESTART:
                self._end_rebuild()
                made = self._recorded(planned, new_checkpoint=False)
                if becomes.replaced:
                    restart_runs(self.store, looking_up(self.store, old.stream))  # each holds the old columns in hand
                return self._done(planned, made)
        return self._rebuilt(planned, old)

    def _planned(self, columns: Columns | None = None) -> Planned:
        model = Model(self.spec, self.on_change)
        if columns is not None:
            model = replace(model, columns=columns.changes, followed=columns.followed)
        deployed = deployed_streams(self.store)
        return plan_model(model, deployed.get(self.spec.name), full_refresh=self.full_refresh)

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
            deploy_quarantine(self.store, self.paths, each, self.tell)

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
            cost = measured(self.paths, self.spec, old)
            told = f" It {cost.words()}." if cost and cost.inputs else ""
            raise CHANGE_NEEDS_REBUILD.error(f"The change of '{old.stream}' needs a rebuild: {why}.{told}", at=at)
        behind = readers(old.stream, deployed_streams(self.store)) - self.together
        if behind:
            raise REBUILD_READERS.error(
                f"'{old.stream}' is to be rebuilt ({why}), and {_listed(behind)} would not be.",
                at=at,
                hint=f"Rebuild them in the same run: --select {old.stream.rpartition('.')[2]}+ --full-refresh.",
            )
        check_inputs(self.spec, self.paths)
        self._end_rebuild()
        if self._goes_beside(old):
            return self._begun(planned, old)
        return self._done(planned, self._made_anew(planned, old))

    def _goes_beside(self, old: Desired) -> bool:
        """Whether the deployed generation can go on meanwhile: nobody streams from it, and its own inputs are there.

        Of a published table the topic cannot be swapped: two generations would write it at the same time.
        """
        before = spec_of(old)
        if before is None or self.spec.output.view is not None or self.read_in_run:
            return False
        if before.publish is not None or self.spec.publish is not None:
            return False
        deployed = deployed_streams(self.store)
        return not readers(old.stream, deployed) and not deployed[old.stream].stale

    def _begun(self, planned: Planned, old: Desired) -> Deployment:
        aside = spec_beside(self.spec)
        _prepare(self.store, self.spec, full_refresh=True, dry=True)
        _prepare(self.store, aside, full_refresh=True)
        self._quarantines()
        made = self.store.begin_rebuild(
            self.spec.name,
            self.spec.to_json(),
            self.spec.hash,
            beside_json=aside.to_json(),
            beside_hash=aside.hash,
            verdict=planned.verdict.value,
        )
        reasons = (*planned.reasons, f"{BESIDE} generation {old.generation}, which goes on until it has caught up")
        return Deployment(
            old.stream, made.generation, planned.verdict.value, made.checkpoint_id, reasons, changed=True, beside=True
        )

    def _is_being_built(self) -> bool:
        rebuild = self.store.rebuild(self.spec.name)
        return rebuild is not None and rebuild.spec_hash == self.spec.hash

    def _end_rebuild(self) -> None:
        """What is deployed now takes the place of a rebuild that is under way."""
        ended = self.store.end_rebuild(self.spec.name)
        await_settled(self.store, self.spec.name, self.tell)
        if not ended:
            raise _TakenOverError

    def _refuse_rebuilt_inputs(self) -> None:
        for item in self.spec.inputs:
            streamed = isinstance(item, TableStreamInput) and not self.spec.is_full
            rebuild = self.store.rebuild(item.relation) if streamed else None
            if rebuild is not None and rebuild.phase is not RebuildPhase.FAILED:
                raise REBUILD_UNDER_WAY.error(
                    f"'{item.relation}', which it reads, is being rebuilt.", at=Location(self.spec.path)
                )

    def _made_anew(self, planned: Planned, old: Desired) -> Desired:
        # A model that Spark rejects is found out while the old version still runs.
        _prepare(self.store, self.spec, full_refresh=True, dry=True)
        try:
            stop_stream(self.store, old.stream, progress=self.tell)
            _prepare(self.store, self.spec, full_refresh=True)
        except BaseException:  # Ctrl-C, too, leaves it as it was
            self.store.set_wanted(old.stream, old.wanted)
            raise
        made = self._recorded(planned, new_checkpoint=True, wanted=Wanted.RUNNING)
        restart_runs(self.store, looking_up(self.store, old.stream))  # each holds the table that was there in hand
        return made


def spec_beside(spec: StreamSpec) -> StreamSpec:
    """The spec of the stream that builds the new generation: another name and another table, nothing else."""
    output = spec.output.model_copy(update={"relation": beside(spec.output.relation)})
    return spec.model_copy(update={"name": beside(spec.name), "output": output})


def measured(paths: ProjectPaths, spec: StreamSpec, old: Desired) -> RebuildCost | None:
    """What a rebuild would read; None when the project has no settings yet."""
    topics = TopicWatch()
    try:
        return CostMeter(paths, read_settings(paths).kafka, topics).measure(spec, old)
    except PenstockError:
        return None  # the error that this is part of says what matters
    finally:
        topics.close()


def _listed(names: Collection[str]) -> str:
    return " and ".join(f"'{name}'" for name in sorted(names))


def _prepare(store: Store, spec: StreamSpec, *, full_refresh: bool, dry: bool = False) -> None:
    """Have the engine read the model and make its table."""
    ask_columns(store, spec, full_refresh=full_refresh, dry=dry)


def _left_alone(store: Store, old: Desired) -> tuple[str, ...]:
    """What a person who deploys an unchanged stream should know of it; a quarantine ends here."""
    if old.wanted is Wanted.STOPPED:
        return ("it is stopped: 'penstock start' starts it",)
    if store.actual(old.stream).state is StreamState.QUARANTINED:
        store.set_wanted(old.stream, Wanted.RUNNING)
        return ("it was quarantined, and is tried again",)
    return ()
