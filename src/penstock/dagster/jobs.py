"""Jobs over any selection: deploy, full refresh, start, stop, restart.

Rules
- Every job takes `select`: dbt's selection, names of models or streams, or `*` for all.
- Wrong input fails with the product's error, before anything is changed.
- A run ends by itself within minutes; nothing of a stream lives in it.
"""

# Annotations are not put off here: Dagster reads those of the functions that it is given.

from collections.abc import Callable
from typing import Any, Protocol

from dagster import Config, JobDefinition, OpExecutionContext, in_process_executor, job, op
from dagster_dbt import DbtCliResource
from pydantic import Field

from penstock.control.deployed import waiting_streams
from penstock.control.source_tables import stoppable
from penstock.control.streams import fail_stream, restart_stream, start_stream, stop_stream
from penstock.control.up import ensure_up
from penstock.control.waiting import wait_for
from penstock.dagster.deploying import Deployment, failed
from penstock.dagster.project import Project
from penstock.dagster.selecting import ALL, selected, selected_streams
from penstock.dagster.translator import PenstockTranslator
from penstock.errors import PenstockError
from penstock.errors.catalogue import ENGINE_DOWN, STREAM_FAILED, STREAM_UNKNOWN
from penstock.store import Store, StreamState, Wanted

RESTART_SENSOR_JOB = "penstock_recover"
LONGEST = "900"  # seconds; what takes longer hangs, and is ended by Dagster's run monitoring
TAGS = {"dagster/max_runtime": LONGEST}
UP = 180.0
RUNS_AGAIN = 120.0


class Select(Config):
    """What a job is about."""

    select: str = Field(
        description="dbt's selection ('clicks_clean+', 'tag:orders', 'source:shop.items'), names of streams, or '*'."
    )


class Recover(Config):
    """What the restart sensor found."""

    streams: list[str] = Field(description="The streams that do not run.")
    reason: str = Field(default="", description="Why they are to be started.")
    stuck: bool = Field(default=False, description="They run, and commit nothing.")


def build_jobs(project: Project, translator: PenstockTranslator, dbt: DbtCliResource) -> list[JobDefinition]:
    """All jobs of a code location."""

    def dbt_job(name: str, about: str, *more: str) -> JobDefinition:
        @op(name=f"{name}_op")
        def run(context: OpExecutionContext, config: Select) -> None:
            with told(context):
                found = selected(project, config.select)
                deployment = Deployment(project, translator, context)
                # An op has no assets of its own: what was built is told as events of the run. Source tables come
                # first: what joins them would miss the rows that they do not have yet.
                tables = list(found.source_tables)
                for event in deployment.source_tables(tables, full_refresh="--full-refresh" in more):
                    context.log_event(event)
                if not found.models:
                    return
                args = ["run", *more] + ([] if config.select.strip() == ALL else ["--select", *found.words])
                for event in deployment.events(dbt, args, assets=False):
                    context.log_event(event)

        @job(name=name, description=about, tags=TAGS, executor_def=in_process_executor)
        def made() -> None:
            run()

        return made

    def stream_job(name: str, about: str, act: Callable[[Store, str], object]) -> JobDefinition:
        @op(name=f"{name}_op")
        def run(context: OpExecutionContext, config: Select) -> None:
            with told(context):
                store = _store(project)
                streams = selected_streams(project, config.select, [each.stream for each in store.all_desired()])
                if act is stop_stream:
                    streams = stoppable(store, streams, everything=config.select.strip() == ALL)
                for stream in streams:
                    act(store, stream)
                    context.log.info(f"{stream}: {store.actual(stream).state.value}")

        @job(name=name, description=about, tags=TAGS, executor_def=in_process_executor)
        def made() -> None:
            run()

        return made

    @op(name=f"{RESTART_SENSOR_JOB}_op")
    def recover_op(context: OpExecutionContext, config: Recover) -> None:
        with told(context):
            recover(project, config, context.log.info)

    @job(
        name=RESTART_SENSOR_JOB,
        description="What the restart sensor asks for: brings the project up and waits until the streams run.",
        tags=TAGS,
        executor_def=in_process_executor,
    )
    def recover_job() -> None:
        recover_op()

    return [
        dbt_job("penstock_deploy", "Deploy the streams and source tables of a selection, and build its models."),
        dbt_job("penstock_full_refresh", "Compute the tables of a selection anew from the start.", "--full-refresh"),
        stream_job("penstock_start", "Run the streams of a selection; a quarantine is lifted.", start_stream),
        stream_job("penstock_stop", "Stop the streams of a selection, and keep them stopped.", stop_stream),
        stream_job("penstock_restart", "Begin a new run of the streams of a selection.", restart_stream),
        recover_job,
    ]


def recover(project: Project, config: Recover, tell: Callable[[str], None]) -> list[str]:
    """Bring back what is wanted and does not run; the streams that run in the end. Deliberate stops stay."""
    store = _store(project)
    still = [name for name in config.streams if _shall_run(store, name)]
    if not still:
        tell("Nothing to do: every stream was stopped or dropped in the meantime.")
        return []
    elsewhere = [name for name in still if not _is_here(project, store, name)]
    if elsewhere:
        raise ENGINE_DOWN.error(
            f"The checkpoints of {', '.join(elsewhere)} are not on this machine.",
            hint="Call 'penstock up' where the engine ran.",
        )
    tell(f"Bringing up the project for {', '.join(still)}: {config.reason or 'asked for'}")
    ensure_up(project.paths, project.settings(), progress=tell, timeout=UP)
    if config.stuck:
        for name in still:
            fail_stream(store, name, f"'{name}' was {config.reason or 'stuck'}.")

    def running() -> bool | None:
        return True if all(_runs_or_ended(store, name) for name in still) else None

    if wait_for(running, RUNS_AGAIN, tell=tell, message="Waiting for the streams to run", poll=0.25) is None:
        missing = [name for name in still if not _runs_or_ended(store, name)]
        raise ENGINE_DOWN.error(f"Waited {RUNS_AGAIN:.0f} s for {', '.join(missing)} to run.")
    bad = [name for name in still if store.actual(name).state is StreamState.QUARANTINED]
    if bad:
        found = store.actual(bad[0])
        raise STREAM_FAILED.error(f"{', '.join(bad)} cannot run: {found.error or 'no message'}")
    return still


def _shall_run(store: Store, stream: str) -> bool:
    want = store.find_desired(stream)
    held = store.actual(stream).state is StreamState.QUARANTINED or stream in waiting_streams(store)
    return want is not None and want.wanted is Wanted.RUNNING and not held


def _is_here(project: Project, store: Store, stream: str) -> bool:
    """An engine beside an empty checkpoint would begin anew: what has run before has to be on this machine."""
    want = store.desired(stream)
    ran = store.actual(stream).batch_id is not None and store.actual(stream).generation == want.generation
    return not ran or project.paths.checkpoint(stream, want.checkpoint_id).exists()


def _runs_or_ended(store: Store, stream: str) -> bool:
    return not _shall_run(store, stream) or store.actual(stream).state is StreamState.RUNNING


def _store(project: Project) -> Store:
    store = project.store()
    if store is None:
        raise STREAM_UNKNOWN.error("Nothing is deployed yet.", hint="Materialise a dynamic table, or 'dbt run'.")
    return store


class Logs(Protocol):
    """A context of Dagster, of whatever kind."""

    @property
    def log(self) -> Any: ...


class told:  # noqa: N801 -- reads as a sentence: `with told(context):`
    """A failure with a code ends the run with its words, without a stack trace."""

    def __init__(self, context: Logs) -> None:
        self._context = context

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, problem: BaseException | None, _trace: object) -> None:
        if isinstance(problem, PenstockError):
            self._context.log.error(str(problem))
            raise failed(problem) from None
