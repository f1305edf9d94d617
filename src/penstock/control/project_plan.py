"""The plan of a project: `planning` with the facts that store, brokers and, when it runs, the engine have.

Rules
- Nothing is changed by it. The engine is asked to analyse changed queries; it makes and starts nothing for that.
- A model that no deployment would take is a problem of its own; the others are planned without it.
- Without an engine the columns of a changed query are not known, and the plan says so in its reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.compiler.plan import Verdict
from penstock.compiler.spec import StreamSpec
from penstock.control.clusters import Asked, moved_sources
from penstock.control.columns import Columns, NotIncrementalError, ask_columns
from penstock.control.deployed import deployed_streams
from penstock.control.planning import Deployed, Model, Planned, Project, deployable, judged, orphans, plan_streams
from penstock.control.rebuild_cost import CostMeter
from penstock.errors import PenstockError
from penstock.kafka.topic_watch import TopicWatch
from penstock.paths import ProjectPaths
from penstock.project.profile import KafkaSettings
from penstock.store import Store

UNCHECKED = "whether its columns change is checked while the engine runs"


def project_plan(
    store: Store | None,
    paths: ProjectPaths,
    kafka: KafkaSettings,
    models: Sequence[Model],
    *,
    project: Project | None,
    full_refresh: bool = False,
    engine: bool = False,
) -> tuple[list[Planned], list[PenstockError]]:
    """What deploying the models does, and which of them it would not take; with the whole `project` orphans, too."""
    deployed = deployed_streams(store) if store is not None else {}
    models, problems = deployable(models, deployed)
    asked = Asked()
    if store is not None:
        models = [replace(each, moved=moved_sources(store, paths, each.spec, asked, kafka)) for each in models]
    planned = plan_streams(models, deployed, full_refresh=full_refresh)
    if store is not None:
        planned = _with_columns(store, models, deployed, planned, full_refresh=full_refresh, engine=engine)
    topics = TopicWatch()
    try:
        meter = CostMeter(paths, kafka, topics, asked)
        specs = {model.spec.name: model.spec for model in models}
        planned = [
            judged(each, meter.measure(specs[each.stream], store.desired(each.stream)))
            if store is not None and each.rebuilds
            else each
            for each in planned
        ]
    finally:
        topics.close()
    return planned + (orphans(deployed, project) if project is not None else []), problems


def plan_against(
    models: Sequence[Model],
    before: Mapping[str, Deployed],
    *,
    project: Project | None,
    full_refresh: bool = False,
) -> tuple[list[Planned], list[PenstockError]]:
    """What the models would do to the streams that a project had `before`: nobody is asked, nothing is counted."""
    models, problems = deployable(models, before)
    planned = [
        replace(each, reasons=(*each.reasons, UNCHECKED)) if each.verdict is Verdict.RESTART else each
        for each in plan_streams(models, before, full_refresh=full_refresh)
    ]
    found = planned + (orphans(before, project) if project is not None else [])
    return [replace(each, generation=None) for each in found], problems


def _with_columns(
    store: Store,
    models: Sequence[Model],
    deployed: Mapping[str, Deployed],
    planned: Sequence[Planned],
    *,
    full_refresh: bool,
    engine: bool,
) -> list[Planned]:
    changed = {each.stream for each in planned if each.verdict is Verdict.RESTART}
    if not changed:
        return list(planned)
    if not engine:
        return [replace(e, reasons=(*e.reasons, UNCHECKED)) if e.stream in changed else e for e in planned]
    known = []
    for model in models:
        if model.spec.name in changed:
            found = _columns(store, model.spec)
            known.append(replace(model, columns=found.changes, followed=found.followed))
        else:
            known.append(model)
    return plan_streams(known, deployed, full_refresh=full_refresh)


def _columns(store: Store, spec: StreamSpec) -> Columns:
    try:
        return ask_columns(store, spec, dry=True)
    except NotIncrementalError:
        return Columns()
