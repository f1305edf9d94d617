"""One stream test, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.compiler.plan import Verdict
from penstock.compiler.quarantine import SUFFIX, quarantines
from penstock.compiler.spec import KafkaInput, StreamSpec
from penstock.control.deploy import settled
from penstock.control.deployed import deployed_streams
from penstock.control.planning import Deployed, Model, plan_model, readers
from penstock.engine import runtime, topic_files
from penstock.engine.sink import TableWriter, Target
from penstock.engine.topic_files import Record
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import (
    CHANGE_NEEDS_REBUILD,
    STREAM_TEST_INVALID,
    STREAM_TEST_NAME,
    STREAM_TEST_VALUE,
    STREAM_TEST_WATERMARK,
)
from penstock.paths import ProjectPaths
from penstock.project.model import on_change, own_full_refresh
from penstock.project.source import relation_of
from penstock.testing import fixtures, tables, versions
from penstock.testing.cases import Case, Deploy, Error, Fixture, Rows, Step
from penstock.testing.chain import Part
from penstock.testing.compare import compare
from penstock.testing.encoding import Places, encode
from penstock.testing.lab import Failure, Lab, StepFailedError, with_step
from penstock.testing.running import RunningStreams
from penstock.testing.schemas import Schemas
from penstock.testing.values import UnfitError


class Trial:
    """Runs a test in a directory of its own."""

    def __init__(self, lab: Lab, case: Case, spark: SparkSession, paths: ProjectPaths, parts: Sequence[Part]) -> None:
        self.lab = lab
        self.case = case
        self.paths = paths
        self.parts = {part.unique_id: part for part in parts}
        self._spark = spark
        self._records = paths.project / "topics"
        self._warehouse = paths.project / "tables"
        self._spark.conf.set(topic_files.RECORDS_CONF, str(self._records))
        self._spark.conf.set(runtime.PROJECT_CONF, str(paths.project))
        self._streams = RunningStreams(self._spark, paths)
        self._schemas = Schemas(paths)
        self._places = Places()
        self._specs: dict[str, StreamSpec] = {}  # of the streams that run, upstream first
        self._databases: set[str] = set()
        self._fed: dict[str, tuple[StreamSpec, TableWriter, int]] = {}
        self._files = 0

    # -- the whole ----------------------------------------------------------------------------------------------------
    def run(self, tell: Callable[[str], None]) -> None:
        """All steps; raises StepFailedError, or what is wrong with the test itself."""
        problem = self._tried(self._set_up)
        for index, step in enumerate(self.case.test.steps):
            tell(step.kind)
            try:
                problem = self._step(step, self.case.at(index), problem)
            except StepFailedError as failed:
                raise StepFailedError(with_step(failed.failure, self.case, index)) from None
            except UnfitError as unfit:
                raise STREAM_TEST_VALUE.error(f"{unfit}.", at=self.case.at(index)) from None
        if problem is not None:
            raise StepFailedError(with_step(_ended(problem), self.case, len(self.case.test.steps) - 1))

    def close(self) -> None:
        self._streams.close()
        for name in self._databases:
            self._spark.sql(f"DROP SCHEMA IF EXISTS {tables.quoted(name)} CASCADE")

    def _step(self, step: Step, at: Location, problem: PenstockError | None) -> PenstockError | None:
        """Do one step; the failure that the next one has to expect."""
        if step.expect_error is not None:
            self._expect_error(step.expect_error, problem)
            return None
        if problem is not None:
            raise StepFailedError(_ended(problem))
        if step.input is not None:
            return self._tried(self._input, step.input, at)
        if step.advance_watermark is not None:
            return self._tried(self._advance, step.advance_watermark, at)
        if step.restart:
            return self._tried(self._streams.restart, list(self._specs)) or self._tried(self._settle)
        if step.kill:
            return self._tried(self._streams.kill, list(self._specs)) or self._tried(self._settle)
        if step.deploy is not None:
            return self._tried(self._deploy, step.deploy, at)
        if step.expect is not None:
            self._expect(step.expect, at)
        elif step.expect_quarantine is not None:
            self._expect_quarantine(step.expect_quarantine, at)
        elif step.expect_warnings is not None:
            self._expect_warnings(step.expect_warnings)
        return None

    def _tried(self, do: Callable[..., None], *arguments: Any) -> PenstockError | None:
        try:
            do(*arguments)
        except PenstockError as problem:
            if problem.code.startswith("PEN-60"):
                raise  # of the test itself
            return problem
        return None

    # -- before the first step ----------------------------------------------------------------------------------------
    def _set_up(self) -> None:
        for function in self.lab.project.functions(self.parts):
            name = relation_of(function)
            self._database(name)
            tables.make_function(self._spark, name, function)
        self._know_recorded()
        for part in self.parts.values():
            self._database(part.relation)
            if part.kind == "seed":
                tables.register(self._spark, part.relation, self.lab.seed(part.unique_id))
            elif part.kind == "given":
                self._given(part)
            elif part.kind == "view":
                sql = self.lab.project.entry(part.unique_id).get("compiled_code")
                self._spark.sql(f"CREATE VIEW {tables.quoted(part.relation)} AS {sql}")
            else:
                self._stream(part)
        for name, rows in self.case.test.given.items():
            unique_id = self._named(name, self.case.at())
            if unique_id in self._fed:
                self._feed(unique_id, rows)

    def _know_recorded(self) -> None:
        """Streams look for the schemas of a source when they start: those of fixtures have to be there by then."""
        for index, step in enumerate(self.case.test.steps):
            for name, rows in (step.input or {}).items():
                unique_id = self._named(name, self.case.at(index))
                if isinstance(rows, Fixture) and self.lab.project.is_topic(unique_id):
                    recorded = fixtures.read(self.lab.project.folder / rows.fixture, self.case.at(index))
                    self._schemas.recorded(self.lab.project.topic(unique_id), recorded)

    def _given(self, part: Part) -> None:
        entry = self.lab.project.entry(part.unique_id)
        names = [name for name in self.case.test.given if self._named(name, self.case.at()) == part.unique_id]
        rows = self.case.test.given[names[0]] if names else []
        try:
            made = tables.given(entry, rows, self.lab.project.folder)
        except UnfitError as problem:
            raise STREAM_TEST_VALUE.error(f"{problem}.", at=self.case.at()) from None
        path = self._path(part.relation)
        tables.write(path, made)
        tables.register(self._spark, part.relation, path)

    def _stream(self, part: Part) -> None:
        assert part.spec is not None
        self._prepare_schemas(part.spec)
        if part.kind == "stream":
            for each in quarantines(part.spec):
                if each.name not in self._specs:
                    self._database(each.output.relation)
                    self._begin(each)
            self._begin(part.spec)
        else:
            spec, _ = self._prepared(part.spec)
            if part.kind == "fed":
                self._fed[part.unique_id] = (spec, self._writer(spec), 0)

    def _begin(self, spec: StreamSpec) -> None:
        spec, _ = self._prepared(spec)
        self._specs[spec.name] = spec
        self._streams.deploy(quick(spec), Verdict.NEW, anew=True)

    def _prepared(
        self, spec: StreamSpec, *, full_refresh: bool = False, dry: bool = False
    ) -> tuple[StreamSpec, dict[str, Any]]:
        """The spec as the engine takes it, its table made; and the engine's answer."""
        self._database(spec.output.relation)
        spec = settled(self._streams.store, spec)
        found = self._streams.prepare(quick(spec), full_refresh=full_refresh, dry=dry)
        if found.get("full"):
            spec = spec.as_full(str(found["full"]))
            found = self._streams.prepare(quick(spec), full_refresh=full_refresh, dry=dry)
        return spec, found

    def _prepare_schemas(self, spec: StreamSpec) -> None:
        for each in spec.inputs:
            if isinstance(each, KafkaInput):
                self._schemas.know(each)

    def _database(self, relation: str) -> None:
        name = relation.rpartition(".")[0]
        if name not in self._databases:
            self._databases.add(name)
            self._spark.sql(f"CREATE SCHEMA IF NOT EXISTS {tables.quoted(name)} LOCATION '{self._warehouse / name}'")

    def _path(self, relation: str) -> Path:
        schema, _, name = relation.rpartition(".")
        return self._warehouse / schema / name.lower()

    def _named(self, name: str, at: Location) -> str:
        return self.lab.project.find(name, at)

    # -- input --------------------------------------------------------------------------------------------------------
    def _input(self, inputs: Mapping[str, Any], at: Location) -> None:
        records: dict[str, list[Record]] = {}
        for name, rows in inputs.items():
            unique_id = self._named(name, at)
            if self.lab.project.is_topic(unique_id):
                for each in self._messages(unique_id, rows, at):
                    records.setdefault(each.topic, []).append(each)
            elif isinstance(rows, Fixture):
                raise STREAM_TEST_INVALID.error(f"a fixture holds messages, and {name} is a table.", at=at)
            elif unique_id in self._fed:
                self._feed(unique_id, rows)
            else:
                entry = self.lab.project.entry(unique_id)
                tables.write(
                    self._path(self.parts[unique_id].relation), tables.given(entry, rows, self.lab.project.folder)
                )
        for topic, some in records.items():
            self._files += 1
            topic_files.write(self._records, topic, self._files, some)
        self._settle()

    def _messages(self, unique_id: str, rows: Any, at: Location) -> list[Record]:
        source = self.lab.project.topic(unique_id)
        if isinstance(rows, Fixture):
            found = fixtures.read(self.lab.project.folder / rows.fixture, at).records[: rows.limit]
            # A topic that was recorded elsewhere may have another name here.
            return [replace(each, topic=source.topic) if source.topic else each for each in found]
        return [record for row in rows for record in encode(source, row, self._places, self._schemas.encode)]

    def _writer(self, spec: StreamSpec) -> TableWriter:
        path = self._path(spec.output.relation)
        checkpoint = self.paths.checkpoint(spec.name, "fed")
        target = Target(
            stream=spec.name, table=spec.output.relation, path=str(path), mode=spec.output.mode.value,
            keys=spec.output.keys, checkpoint=checkpoint, checkpoint_id="fed", small_batch_rows=spec.small_batch_rows,
            stateful=False,
        )  # fmt: skip
        return TableWriter(target, 1)

    def _feed(self, unique_id: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows into a dynamic table as its own stream would."""
        spec, writer, number = self._fed[unique_id]
        schema = tables.arrow_schema(self._spark.table(tables.quoted(spec.output.relation)).schema)
        writer(self._spark.createDataFrame(tables.typed(rows, schema, spec.name)), number)
        self._fed[unique_id] = (spec, writer, number + 1)

    def _settle(self) -> None:
        for stream in self._specs:
            self._streams.settle(stream)

    # -- time and versions --------------------------------------------------------------------------------------------
    def _advance(self, to: datetime, at: Location) -> None:
        zoned = to if to.tzinfo is not None else to.replace(tzinfo=timezone.utc)
        moved = []
        for stream in self._specs:
            moved.append(self._streams.advance(stream, int(zoned.timestamp() * 1000)))
            if moved[-1]:
                self._streams.settle(stream)
        if True not in moved:
            why = "it is past that time already" if False in moved else "no stream of this test has one"
            raise STREAM_TEST_WATERMARK.error(
                f"the watermark cannot be put to {zoned:%Y-%m-%d %H:%M:%S}: {why}.", at=at
            )
        self._settle()

    def _deploy(self, step: Deploy, at: Location) -> None:
        part = self._part_of(step, at)
        assert part.spec is not None
        spec = self._changed(step, part, at)
        store = self._streams.store
        entry = self.lab.project.entry(part.unique_id)
        change = step.config.get("on_configuration_change", on_change(entry))
        own = step.config.get("full_refresh", own_full_refresh(entry))
        old, full = self._deployed(part), step.full_refresh
        planned = plan_model(Model(settled(store, spec), change, full_refresh=own), old, full_refresh=full)
        if planned.verdict is Verdict.RESTART:
            spec, found = self._prepared(spec)
            columns, followed = (tuple(found.get(name) or ()) for name in ("changes", "followed"))
            planned = plan_model(Model(spec, change, columns, followed, own), old, full_refresh=full)
        if step.verdict is not None and planned.verdict.value != step.verdict:
            why = "; ".join(planned.reasons) or "nothing changed"
            raise StepFailedError(Failure(f"the verdict is {planned.verdict.value} ({why}), not {step.verdict}"))
        if planned.verdict is Verdict.NO_OP or planned.kept:
            return
        if planned.rebuilds:
            if not planned.confirmed:
                raise CHANGE_NEEDS_REBUILD.error(
                    f"The change of '{spec.name}' needs a rebuild: {'; '.join(planned.reasons)}.", at=at
                )
            self._rebuild(spec)
        else:
            self._specs[spec.name] = spec
            self._streams.deploy(quick(spec), planned.verdict, anew=False)
        self._settle()

    def _deployed(self, part: Part) -> Deployed:
        assert part.spec is not None
        found = deployed_streams(self._streams.store)[part.spec.name]
        return replace(found, spec=self._specs[part.spec.name])  # without the quick trigger of tests

    def _rebuild(self, spec: StreamSpec) -> None:
        """Make the table anew, and those that are read from it."""
        behind = readers(spec.name, deployed_streams(self._streams.store))
        again = [spec, *(each for each in self._specs.values() if each.name in behind)]
        for each in again:
            self._streams.stop(each.name)
        for each in again:
            made, _ = self._prepared(each, full_refresh=True)
            self._specs[each.name] = made
            self._streams.deploy(quick(made), Verdict.REBUILD, anew=True)

    def _part_of(self, step: Deploy, at: Location) -> Part:
        running = [part for part in self.parts.values() if part.runs]
        if step.model is None:
            named = [self._named(name, at) for name in self.case.test.model]
            running = [part for part in running if part.unique_id in named]
            if len(running) != 1:
                raise STREAM_TEST_INVALID.error("the test has several models: say which one is deployed.", at=at)
            return running[0]
        unique_id = self._named(step.model, at)
        found = next((part for part in running if part.unique_id == unique_id), None)
        if found is None:
            raise STREAM_TEST_NAME.error(f"'{step.model}' is no stream of this test.", at=at)
        return found

    def _changed(self, step: Deploy, part: Part, at: Location) -> StreamSpec:
        project = self.lab.project
        raw = step.sql
        if step.file is not None:
            try:
                raw = (project.folder / step.file).read_text(encoding="utf-8")
            except OSError as problem:
                raise STREAM_TEST_INVALID.error(f"{step.file} cannot be read: {problem.strerror}.", at=at) from None
        entry = project.entry(part.unique_id)
        if raw is None:
            return project.changed(part.unique_id, str(entry["compiled_code"]), step.config, str(entry["raw_code"]))
        sql, config = versions.render(raw, project, at)
        return project.changed(part.unique_id, sql, {**config, **step.config}, raw)

    # -- expectations -------------------------------------------------------------------------------------------------
    def _expect(self, expected: Any, at: Location) -> None:
        if isinstance(expected, list):
            expected = {self.case.test.model[-1]: expected}
        for name, rows in expected.items():
            part = self.parts[self._named(name, at)]
            keys = part.spec.output.keys if part.spec is not None else ()
            self._compare(name, self._rows(part), rows, keys)

    def _rows(self, part: Part) -> pa.Table:
        if part.spec is not None and part.spec.output.view is None:
            return DeltaTable(str(self._path(part.relation))).to_pyarrow_table()
        return self._spark.table(tables.quoted(part.relation)).toArrow()

    def _expect_quarantine(self, expected: Any, at: Location) -> None:
        kept = [name for name in self._specs if name.endswith(SUFFIX)]
        if isinstance(expected, list):
            if len(kept) != 1:
                raise STREAM_TEST_INVALID.error("say of which source the quarantine is.", at=at)
            expected = {kept[0].removesuffix(SUFFIX): expected}
        for name, rows in expected.items():
            source = self.lab.project.topic(self._named(name, at)).relation
            if f"{source}{SUFFIX}" not in kept:
                raise STREAM_TEST_NAME.error(
                    f"no stream of this test keeps the bad records of {source}.", at=at,
                    hint="Set on_bad_record: quarantine in the source or the model.",
                )  # fmt: skip
            table = DeltaTable(str(self._path(f"{source}{SUFFIX}"))).to_pyarrow_table()
            self._compare(f"{source}{SUFFIX}", table, rows, ())

    def _compare(self, name: str, table: pa.Table, rows: Any, keys: Sequence[str]) -> None:
        wanted = rows if isinstance(rows, Rows) else Rows(rows=rows)
        if wanted.count is not None:
            if table.num_rows != wanted.count:
                raise StepFailedError(Failure(f"{name} has {table.num_rows} rows, not {wanted.count}"))
            return
        diff = compare(wanted.rows, table, subset=wanted.subset, ordered=wanted.ordered, keys=keys)
        if diff is not None:
            raise StepFailedError(Failure(f"rows of {name}: {diff.summary}", diff=diff))

    def _expect_warnings(self, expected: Sequence[str]) -> None:
        left = [warning for spec in self._specs.values() for warning in spec.warnings]
        for part in expected:
            found = next((each for each in left if part.lower() in each.lower()), None)
            if found is None:
                raise StepFailedError(Failure(f"no warning says '{part}'; there are: {'; '.join(left) or 'none'}"))
            left.remove(found)
        if left:
            raise StepFailedError(Failure(f"a warning that is not expected: {left[0]}"))

    def _expect_error(self, expected: Error, problem: PenstockError | None) -> None:
        if problem is None:
            raise StepFailedError(Failure(f"{expected.code} is expected, and nothing failed"))
        if problem.code != expected.code or (expected.contains or "").lower() not in str(problem).lower():
            part = f" with '{expected.contains}'" if expected.contains else ""
            raise StepFailedError(Failure(f"{expected.code}{part} is expected, not {problem}"))


def _ended(problem: PenstockError) -> Failure:
    return Failure(problem.message, code=problem.code, hint=problem.next_step)


def quick(spec: StreamSpec) -> StreamSpec:
    """The same stream without waiting, in one partition, and without a topic to publish to: its rows are in its table
    alone."""
    trigger = spec.trigger.model_copy(update={"time_window_ms": 1, "buffer_limit": 1})
    return spec.model_copy(update={"trigger": trigger, "publish": None, "shuffle_partitions": 1})
