"""What deploying a project would do to each stream, before anything is done. Pure: the caller brings all facts.

Rules
- A stream that reads a rebuilt table as a stream is rebuilt, too: its place in the old table means nothing in the new
  one. When such a reader is deployed and the run would not rebuild it, because it is not part of the run or not
  confirmed as its input is, the rebuild is refused.
- What needs a rebuild and has `on_configuration_change: continue` is REFUSED and goes on as it is; so do its readers.
- A rebuild that would lose rows is REFUSED unless it is confirmed: by --full-refresh, or by the model's
  `on_configuration_change: apply`.
- A stream whose topic is on another Kafka cluster than what it has read is rebuilt, whatever else changed: its offsets
  mean nothing there.
- A stream that joins a rebuilt source table starts again, on its checkpoint.
- --full-refresh is about models: a source table is rebuilt only when its own change needs it. A model's own
  `full_refresh` wins over it.
- A deployed stream whose model is gone, disabled, renamed or no dynamic table any more is an ORPHAN. Of one whose model
  writes into another schema now, the old schema decides: one that the project writes has lost the model; any other is
  that of another target, which deployed the stream into the same store.
- An orphan that a stream which goes on reads is not pruned, nor is what such an orphan reads: the reader would starve
  without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.compiler.plan import Plan, Verdict, plan_change
from penstock.compiler.quarantine import quarantines
from penstock.compiler.spec import StreamSpec, TableInput, TableStreamInput
from penstock.control.rebuild_cost import RebuildCost
from penstock.errors import PenstockError
from penstock.project.model import is_refreshed

APPLY, CONTINUE, FAIL = "apply", "continue", "fail"
OTHER_VERSION = Plan(Verdict.REBUILD, ("it was deployed by another version of Penstock",))


@dataclass(frozen=True)
class Model:
    """A dynamic table of the project, compiled."""

    spec: StreamSpec
    on_change: str = FAIL  # on_configuration_change
    columns: tuple[str, ...] = ()  # how the query's columns differ from the table's, where that takes a rebuild
    followed: tuple[str, ...] = ()  # what becomes of those that differ without one
    full_refresh: bool | None = None  # its own, which wins over that of the run
    moved: tuple[str, ...] = ()  # the sources that are on another Kafka cluster than what was read, as reasons


@dataclass(frozen=True)
class Project:
    """What the whole project writes under the target of now."""

    tables: Mapping[str, str]  # unique id -> relation, of dynamic tables, source tables and live tests
    schemas: frozenset[str]  # that of the target, and those of its models; a source's is the same under every target


@dataclass(frozen=True)
class Planned:
    """What becomes of one stream, and why."""

    stream: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    path: str | None = None
    generation: int | None = None  # the deployed one
    confirmed: bool = False  # a rebuild that `dbt run` does without being told again
    on_change: str = FAIL
    heeds_flag: bool = True  # False: --full-refresh has no effect, on it or on one of `also`
    also: tuple[str, ...] = ()  # deployed readers that a rebuild would leave behind
    cost: RebuildCost | None = None
    read_by: tuple[str, ...] = ()  # of an orphan: the streams that go on and read it, so that it is not pruned

    @property
    def rebuilds(self) -> bool:
        return self.verdict in (Verdict.REBUILD, Verdict.REFUSED)

    @property
    def kept(self) -> bool:
        """Whether it needs a rebuild and goes on as it is deployed, because its model says so."""
        return self.rebuilds and self.on_change == CONTINUE and not self.confirmed

    @property
    def next_step(self) -> str | None:
        """What a person has to do for it to happen; None when `dbt run` is enough."""
        if self.verdict is Verdict.ORPHAN:
            if self.read_by:
                return "'penstock run --prune' stops it once nothing that goes on reads it any more"
            return "'penstock run --prune' stops it; 'penstock drop' deletes its table"
        if not self.rebuilds:
            return None
        if self.also:
            return f"rebuild its readers in the same run: {selected(self.stream, flag=self.heeds_flag)}"
        if self.kept:
            way = "; --full-refresh rebuilds it" if self.heeds_flag else ""
            return f"on_configuration_change is 'continue': the deployed version goes on{way}"
        if self.confirmed:
            return None
        if self.heeds_flag:
            return "confirm with --full-refresh or on_configuration_change: apply"
        return "confirm with on_configuration_change: apply; its full_refresh is false, so --full-refresh does not"

    def as_dict(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "path": self.path,
            "generation": self.generation,
            "confirmed": self.confirmed if self.rebuilds else None,
            "next_step": self.next_step,
            "rebuild": self.cost.as_dict() if self.cost else None,
        }


def selected(stream: str, *, flag: bool) -> str:
    """The options of a run that rebuilds a stream and its readers."""
    more = "" if flag else ", with on_configuration_change: apply where full_refresh is false"
    return f"--select {stream.rpartition('.')[2]}+ --full-refresh{more}"


@dataclass(frozen=True)
class Built:
    """A new generation that is built beside the deployed one."""

    generation: int
    hash: str
    spec: StreamSpec


@dataclass(frozen=True)
class Deployed:
    """A stream of the store."""

    stream: str
    generation: int
    spec: StreamSpec | None  # None: of another version of Penstock
    stale: tuple[str, ...] = field(default=())  # inputs that were rebuilt after it was, or are being rebuilt
    built: Built | None = None


def plan_streams(
    models: Sequence[Model], deployed: Mapping[str, Deployed], *, full_refresh: bool = False
) -> list[Planned]:
    """The verdict on every model, upstream first; without costs."""
    found: dict[str, Planned] = {}
    for model in upstream_first(models):
        rebuilt = {stream for stream, planned in found.items() if planned.rebuilds and not planned.kept}
        found[model.spec.name] = plan_model(model, deployed.get(model.spec.name), rebuilt, full_refresh=full_refresh)
    sources = {model.spec.name for model in models if model.spec.is_source_table}
    anew = {each.stream for each in found.values() if each.rebuilds and not each.kept} & sources
    for model in models:
        found[model.spec.name] = _started_again(model.spec, found[model.spec.name], anew)
    sure = {each.stream for each in found.values() if each.confirmed}
    # What nobody has confirmed yet can be confirmed together with its readers: those of the run are not in its way.
    behind = [_left_behind(each, deployed, sure if each.confirmed else found.keys()) for each in found.values()]
    deaf = {each.stream for each in found.values() if not each.heeds_flag}
    return [replace(each, heeds_flag=each.heeds_flag and deaf.isdisjoint(each.also)) for each in behind]


def deployable(models: Sequence[Model], deployed: Mapping[str, Deployed]) -> tuple[list[Model], list[PenstockError]]:
    """The models without those that no deployment would take, and why: what Spark refused as a stream before and what
    cannot be refreshed in full either."""
    found: list[Model] = []
    problems: list[PenstockError] = []
    for model in models:
        try:
            plan_model(model, deployed.get(model.spec.name))
        except PenstockError as problem:
            problems.append(problem)
        else:
            found.append(model)
    return found, problems


def _left_behind(planned: Planned, deployed: Mapping[str, Deployed], together: Collection[str]) -> Planned:
    """A rebuild is refused when it has deployed readers that are not rebuilt together with it."""
    also = readers(planned.stream, deployed).difference(together) if planned.rebuilds and not planned.kept else ()
    return replace(planned, also=tuple(sorted(also)), verdict=Verdict.REFUSED) if also else planned


def _started_again(spec: StreamSpec, planned: Planned, rebuilt: Collection[str]) -> Planned:
    """A stream holds the source tables that it joins in hand: it starts again when one of them is made anew."""
    joined = [each.relation for each in spec.inputs if isinstance(each, TableInput) and each.relation in rebuilt]
    if not joined or planned.verdict not in (Verdict.NO_OP, Verdict.HOT):
        return planned
    reasons = (*planned.reasons, *(f"source table {name}, which it reads, is rebuilt" for name in joined))
    return replace(planned, verdict=Verdict.RESTART, reasons=reasons)


def plan_model(
    model: Model, old: Deployed | None, rebuilt: Collection[str] = (), *, full_refresh: bool = False
) -> Planned:
    """The verdict on one model; `rebuilt` are the streams that this run rebuilds."""
    spec = model.spec
    full_refresh = is_refreshed(model.full_refresh, run=full_refresh)
    plan = OTHER_VERSION if old is not None and old.spec is None else plan_change(old.spec if old else None, spec)
    verdict, reasons = plan.verdict, plan.reasons
    built = old.built if old is not None and not full_refresh and not model.moved else None
    if built is not None and built.hash == spec.hash:
        verdict, reasons = Verdict.NO_OP, (f"generation {built.generation} is being built beside the running one",)
    elif old is not None:
        of_inputs = [each.relation for each in spec.inputs if isinstance(each, TableStreamInput) and not spec.is_full]
        more = [f"its input {name} is rebuilt" for name in of_inputs if name in rebuilt]
        more += [f"its input {name} was rebuilt" for name in old.stale if name in of_inputs and name not in rebuilt]
        more += [*model.columns] if verdict is Verdict.RESTART else []
        more += model.moved
        reasons = (*reasons, *model.followed) if verdict is Verdict.RESTART else reasons
        if more:
            reasons = (*(reasons if verdict is Verdict.REBUILD else ()), *more)
            verdict = Verdict.REBUILD
        elif full_refresh and verdict is not Verdict.REBUILD and not spec.is_source_table:
            said = "its full_refresh is true" if model.full_refresh else "--full-refresh"
            verdict, reasons = Verdict.REBUILD, (said,)
    planned = Planned(
        stream=spec.name,
        verdict=verdict,
        reasons=reasons,
        path=spec.path,
        generation=old.generation if old else None,
        confirmed=full_refresh or model.on_change == APPLY,
        on_change=model.on_change,
        heeds_flag=model.full_refresh is not False,
    )
    return replace(planned, verdict=Verdict.REFUSED) if planned.kept else planned


def judged(planned: Planned, cost: RebuildCost) -> Planned:
    """A rebuild with its cost: refused when it would lose rows and nobody confirmed that."""
    refused = cost.lost and not planned.confirmed
    return replace(planned, cost=cost, verdict=Verdict.REFUSED if refused else planned.verdict)


def readers(relation: str, deployed: Mapping[str, Deployed]) -> set[str]:
    """The deployed streams that read a table as a stream, or will when what is being built has taken over."""
    specs = [(each.stream, spec) for each in deployed.values() for spec in (each.spec, each.built and each.built.spec)]
    return {stream for stream, spec in specs if spec and spec.streams_from(relation)}


def table_readers(relation: str, deployed: Mapping[str, Deployed]) -> set[str]:
    """The deployed streams that read a table in any way, or will when what is being built has taken over."""
    return {
        each.stream
        for each in deployed.values()
        for spec in (each.spec, each.built and each.built.spec)
        for item in (spec.inputs if spec else ())
        if isinstance(item, TableInput | TableStreamInput)
        and item.relation.lower() == relation.lower() != each.stream.lower()
    }


def orphans(deployed: Mapping[str, Deployed], project: Project) -> list[Planned]:
    """Deployed streams that the project no longer has."""
    gone = _gone(deployed, project)
    kept = _still_read({each.stream for each in gone}, deployed)
    filled = quarantined(deployed, kept)
    return [
        _read_on(each, kept.get(each.stream, ())) for each in gone if each.stream in kept or each.stream not in filled
    ]


def _read_on(planned: Planned, read_by: tuple[str, ...]) -> Planned:
    more = (f"it is still read by {' and '.join(read_by)}",) if read_by else ()
    return replace(planned, read_by=read_by, reasons=(*planned.reasons, *more))


def _still_read(gone: Collection[str], deployed: Mapping[str, Deployed]) -> dict[str, tuple[str, ...]]:
    """Those of `gone` that streams read which go on, with these; what goes on because of that counts, too."""
    kept: dict[str, tuple[str, ...]] = {}
    ends = set(gone)
    while more := {
        name: tuple(sorted(reading))
        for name in ends
        if (reading := table_readers(name, deployed).difference(ends))
    }:  # fmt: skip
        kept |= more
        ends -= more.keys()
    return kept


def _gone(deployed: Mapping[str, Deployed], project: Project) -> list[Planned]:
    found = []
    written = frozenset(project.tables.values())
    kept = quarantined(deployed, written)
    for each in deployed.values():
        if each.stream in written or each.stream in kept:
            continue
        now = project.tables.get(each.spec.unique_id) if each.spec else None
        schema = each.stream.rpartition(".")[0]
        if now is not None and now.rpartition(".")[0] != schema and schema not in project.schemas:
            continue  # the same model under another target
        why = f"its model writes {now} now" if now else "its model is no longer a dynamic table of the project"
        if each.spec is not None and each.spec.is_source_table:
            why = "its source is no longer a source table of the project"
        if each.spec and each.spec.is_quarantine:
            why = f"no stream keeps the bad records of {each.spec.path} any more"
        found.append(
            Planned(each.stream, Verdict.ORPHAN, (why,), each.spec.path if each.spec else None, each.generation)
        )
    return found


def quarantined(deployed: Mapping[str, Deployed], streams: Collection[str]) -> set[str]:
    """The quarantines of the sources that these streams read."""
    specs = [deployed[name].spec for name in streams if name in deployed]
    return {each.name for spec in specs if spec for each in quarantines(spec)}


def upstream_first(models: Sequence[Model]) -> list[Model]:
    by_name = {model.spec.name: model for model in models}
    done: dict[str, Model] = {}

    def visit(model: Model) -> None:
        if model.spec.name in done:
            return
        for item in model.spec.inputs:
            above = by_name.get(item.relation)
            if above is not None and above is not model:
                visit(above)
        done[model.spec.name] = model

    for model in models:
        visit(model)
    return list(done.values())
