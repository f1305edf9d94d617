"""The plan of a project: verdicts, what they touch, what they cost, and what is left over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.output import Ui
from penstock.cli.plan import compiled_models, markdown, summary, whole_project
from penstock.cli.session import Session
from penstock.compiler import StreamSpec, Verdict, quarantines
from penstock.compiler.spec import (
    Column,
    FromOffsets,
    KafkaInput,
    Output,
    OutputMode,
    TableInput,
    TableStreamInput,
    Trigger,
)
from penstock.control.clusters import Asked
from penstock.control.planning import Built, Deployed, Model, Planned, Project, judged, orphans, plan_streams
from penstock.control.project_plan import UNCHECKED, plan_against, project_plan
from penstock.control.rebuild_cost import CostMeter, InputCost, RebuildCost
from penstock.errors.catalogue import BROKER_UNREACHABLE, MODEL_KEY_IN_FULL
from penstock.paths import ProjectPaths
from penstock.project.model import on_change
from penstock.project.profile import KafkaSettings
from penstock.store import Desired, Store, Wanted

FIXTURES = Path(__file__).parent / "fixtures"


def stream(name: str, *reads: str, **changes: Any) -> StreamSpec:
    """A stream over a topic, or over tables."""
    inputs: tuple[Any, ...] = tuple(TableStreamInput(view=each.replace(".", "_"), relation=each) for each in reads)
    if not reads:
        column = Column(name="k", type="STRING", origin="value.k")
        inputs = (KafkaInput(view="raw", relation="src.raw", topic="raw", columns=(column,)),)
    return StreamSpec(
        name=name, unique_id=f"model.shop.{name.partition('.')[2]}", path=f"models/{name}.sql",
        sql=f"select * from {inputs[0].view}", stateful=False, inputs=inputs,
        output=Output(relation=name, mode=OutputMode.APPEND),
    ).model_copy(update=changes)  # fmt: skip


RAW, CLEAN, REPORT = stream("shop.raw"), stream("shop.clean", "shop.raw"), stream("shop.report", "shop.clean")
KEYED = Output(relation="shop.raw", mode=OutputMode.UPSERT, keys=("k",))
CHANGED = RAW.model_copy(update={"output": KEYED})  # needs a rebuild


def deployed(*specs: StreamSpec, **stale: tuple[str, ...]) -> dict[str, Deployed]:
    return {spec.name: Deployed(spec.name, 3, spec, stale.get(spec.name.partition(".")[2], ())) for spec in specs}


def verdicts(planned: list[Planned]) -> dict[str, str]:
    return {each.stream: each.verdict.value for each in planned}


def test_every_model_gets_a_verdict_upstream_first() -> None:
    faster = CLEAN.model_copy(update={"trigger": Trigger(time_window_ms=5)})
    planned = plan_streams([Model(REPORT), Model(faster), Model(RAW)], deployed(RAW, CLEAN))
    assert [each.stream for each in planned] == ["shop.raw", "shop.clean", "shop.report"]
    assert list(verdicts(planned).values()) == ["NO-OP", "RESTART", "NEW"]


def test_readers_of_a_rebuilt_table_are_rebuilt_all_the_way_down() -> None:
    planned = plan_streams([Model(CHANGED), Model(CLEAN), Model(REPORT)], deployed(RAW, CLEAN, REPORT))
    assert set(verdicts(planned).values()) == {"REBUILD"}
    assert planned[1].reasons == ("its input shop.raw is rebuilt",)
    assert planned[2].reasons == ("its input shop.clean is rebuilt",)


def test_a_rebuild_that_leaves_a_reader_behind_is_refused_and_says_what_to_select() -> None:
    (planned,) = plan_streams([Model(CHANGED, "apply")], deployed(RAW, CLEAN))
    refused = judged(planned, RebuildCost(()))
    assert (refused.verdict, refused.also) == (Verdict.REFUSED, ("shop.clean",))
    assert "--select raw+ --full-refresh" in str(refused.next_step)


def test_continue_goes_on_as_it_is_and_so_do_its_readers() -> None:
    planned = plan_streams([Model(CHANGED, "continue"), Model(CLEAN, "apply")], deployed(RAW, CLEAN))
    assert verdicts(planned) == {"shop.raw": "REFUSED", "shop.clean": "NO-OP"}
    assert "the deployed version goes on" in str(planned[0].next_step)
    (alone,) = plan_streams([Model(CHANGED, "continue")], deployed(RAW, CLEAN))
    assert (alone.verdict, alone.also) == (Verdict.REFUSED, ()), "what is not rebuilt leaves nobody behind"
    confirmed = plan_streams([Model(CHANGED, "continue"), Model(CLEAN)], deployed(RAW, CLEAN), full_refresh=True)
    assert set(verdicts(confirmed).values()) == {"REBUILD"}


def test_a_reader_that_keeps_its_version_is_refused_what_its_input_does_to_it() -> None:
    planned = plan_streams([Model(CHANGED, "apply"), Model(CLEAN, "continue")], deployed(RAW, CLEAN))
    assert verdicts(planned) == {"shop.raw": "REFUSED", "shop.clean": "REFUSED"}
    assert planned[0].also == ("shop.clean",)


def test_a_confirmed_rebuild_is_refused_while_a_reader_in_the_same_run_is_not_confirmed() -> None:
    planned = plan_streams([Model(CHANGED, "apply"), Model(CLEAN)], deployed(RAW, CLEAN))
    assert verdicts(planned) == {"shop.raw": "REFUSED", "shop.clean": "REBUILD"}
    assert planned[0].also == ("shop.clean",)
    assert "--select raw+ --full-refresh" in str(planned[0].next_step)
    both = plan_streams([Model(CHANGED, "apply"), Model(CLEAN, "apply")], deployed(RAW, CLEAN))
    assert [(each.verdict, each.next_step) for each in both] == [(Verdict.REBUILD, None)] * 2


def test_a_rebuild_that_nobody_confirmed_asks_for_that_and_not_for_readers_of_the_same_run() -> None:
    planned = plan_streams([Model(CHANGED), Model(CLEAN)], deployed(RAW, CLEAN))
    assert (planned[0].verdict, planned[0].also) == (Verdict.REBUILD, ())
    assert "confirm with --full-refresh" in str(planned[0].next_step)


def test_a_reader_that_was_left_behind_before_is_rebuilt() -> None:
    (planned,) = plan_streams([Model(CLEAN)], deployed(CLEAN, clean=("shop.raw",)))
    assert (planned.verdict, planned.reasons) == (Verdict.REBUILD, ("its input shop.raw was rebuilt",))


def test_changed_columns_turn_a_restart_into_a_rebuild() -> None:
    sql = RAW.model_copy(update={"sql": "select k, 1 as one from raw"})
    (planned,) = plan_streams([Model(sql, columns=("column one is new",))], deployed(RAW))
    assert (planned.verdict, planned.reasons) == (Verdict.REBUILD, ("column one is new",))


def test_columns_that_change_without_a_rebuild_are_told() -> None:
    sql = RAW.model_copy(update={"sql": "select k, 1 as one from raw"})
    told = "column one is new and is added"
    (planned,) = plan_streams([Model(sql, followed=(told,))], deployed(RAW))
    assert (planned.verdict, planned.reasons[-1]) == (Verdict.RESTART, told)
    (planned,) = plan_streams([Model(sql, columns=("column k is gone",), followed=(told,))], deployed(RAW))
    assert (planned.verdict, planned.reasons) == (Verdict.REBUILD, ("column k is gone",))


def test_a_full_refresh_rebuilds_what_is_deployed_and_is_a_confirmation() -> None:
    planned = plan_streams([Model(RAW), Model(CLEAN)], deployed(RAW), full_refresh=True)
    assert list(verdicts(planned).values()) == ["REBUILD", "NEW"]
    assert planned[0].confirmed
    assert planned[0].next_step is None


@pytest.mark.parametrize("flag", [False, True])
def test_a_model_s_own_full_refresh_wins_over_that_of_the_run(flag: bool) -> None:
    always, never = Model(RAW, full_refresh=True), Model(RAW, full_refresh=False)
    (planned,) = plan_streams([always], deployed(RAW), full_refresh=flag)
    assert (planned.verdict, planned.reasons) == (Verdict.REBUILD, ("its full_refresh is true",))
    assert planned.confirmed
    (planned,) = plan_streams([never], deployed(RAW), full_refresh=flag)
    assert planned.verdict is Verdict.NO_OP


def test_a_model_that_no_deployment_would_take_is_a_problem_beside_the_plan_of_the_others(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    store = Store.open(paths.store)
    refused = CLEAN.as_full("Spark refuses it.")
    store.deploy(refused.name, refused.to_json(), refused.hash, verdict="NEW", new_checkpoint=True)
    keyed = Model(CLEAN.model_copy(update={"own_key": ("k",)}))  # as the same query cannot be kept in full
    models = [Model(RAW), keyed, Model(REPORT)]
    for found, problems in (
        project_plan(store, paths, KafkaSettings(), models, project=None),
        plan_against(models, deployed(refused), project=None),
    ):
        assert verdicts(found) == {"shop.raw": "NEW", "shop.report": "NEW"}
        assert [(each.kind, str(each.at)) for each in problems] == [(MODEL_KEY_IN_FULL, "models/shop.clean.sql")]


def test_of_a_model_that_is_never_refreshed_a_full_refresh_looks_at_the_columns(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    store = Store.open(paths.store)
    store.deploy(RAW.name, RAW.to_json(), RAW.hash, verdict="NEW", new_checkpoint=True)
    sql = Model(RAW.model_copy(update={"sql": "select k, 1 as one from raw"}), full_refresh=False)
    (planned,), _ = project_plan(store, paths, KafkaSettings(), [sql], project=None, full_refresh=True)
    assert (planned.verdict, planned.reasons[-1]) == (Verdict.RESTART, UNCHECKED)


def test_no_flag_is_recommended_that_a_model_does_not_heed() -> None:
    (planned,) = plan_streams([Model(CHANGED, full_refresh=False)], deployed(RAW), full_refresh=True)
    assert (planned.verdict, planned.confirmed) == (Verdict.REBUILD, False)
    assert str(planned.next_step).startswith("confirm with on_configuration_change: apply; its full_refresh is false")
    (kept,) = plan_streams([Model(CHANGED, "continue", full_refresh=False)], deployed(RAW), full_refresh=True)
    assert (kept.verdict, "--full-refresh" in str(kept.next_step)) == (Verdict.REFUSED, False)
    above, _ = plan_streams([Model(CHANGED, "apply"), Model(CLEAN, full_refresh=False)], deployed(RAW, CLEAN))
    assert "--full-refresh, with on_configuration_change: apply where full_refresh is false" in str(above.next_step)


@pytest.mark.parametrize(
    ("how", "lost", "verdict", "step"),
    [
        ("fail", 5, Verdict.REFUSED, "confirm with --full-refresh"),
        ("fail", 0, Verdict.REBUILD, "confirm with --full-refresh"),
        ("fail", None, Verdict.REBUILD, "confirm with --full-refresh"),
        ("apply", 5, Verdict.REBUILD, "None"),
        ("continue", 5, Verdict.REFUSED, "the deployed version goes on"),
        ("continue", 0, Verdict.REFUSED, "the deployed version goes on"),
    ],
)
def test_a_rebuild_that_loses_rows_is_refused_until_it_is_confirmed(
    how: str, lost: int | None, verdict: Verdict, step: str
) -> None:
    (planned,) = plan_streams([Model(CHANGED, how)], deployed(RAW))
    cost = RebuildCost((InputCost("src.raw", "earliest", 7, lost),))
    found = judged(planned, cost)
    assert found.verdict is verdict
    assert step in str(found.next_step)


def of_project(tables: dict[str, str], *schemas: str) -> Project:
    return Project(tables, frozenset({"shop", *schemas}))


def test_a_stream_whose_model_has_another_schema_is_an_orphan_if_its_own_is_one_of_the_project_s() -> None:
    marts = deployed(stream("shop_marts.raw"), stream("shop.clean"), stream("prod.report"))
    moved = {"model.shop.raw": "shop.raw", "model.shop.clean": "shop_new.clean", "model.shop.report": "shop.report"}
    found = orphans(marts, of_project(moved, "shop_new", "shop_marts"))
    assert {each.stream: each.reasons[0] for each in found} == {
        "shop_marts.raw": "its model writes shop.raw now", "shop.clean": "its model writes shop_new.clean now",
    }  # fmt: skip
    left = [each.stream for each in orphans(marts, of_project(moved, "shop_new"))]
    assert left == ["shop.clean"], "that no model writes a schema any more is not known from one of another target"


@pytest.mark.parametrize("schema", [None, "marts"])
def test_the_schemas_of_a_project_are_those_of_its_models_and_its_target(schema: str | None) -> None:
    manifest = json.loads((FIXTURES / "manifest.json").read_text())
    models = [node for node in manifest["nodes"].values() if node["resource_type"] == "model"]
    for node in models:
        node["config"]["schema"] = schema
        node["schema"] = f"dev_{schema}" if schema else "dev"
    assert whole_project(manifest).schemas == ({"dev", "dev_marts"} if schema else {"dev"})
    models[0]["config"]["schema"] = models[0]["schema"] = "as_it_is"  # with a generate_schema_name of their own
    assert whole_project(manifest).schemas == {"as_it_is", "dev", *(["dev_marts"] if schema else [])}


def test_orphans_are_deployed_streams_whose_model_is_gone_or_renamed_but_not_those_of_another_target() -> None:
    project = {"model.shop.raw": "shop.raw", "model.shop.clean": "shop.clean_clicks"}
    other = stream("test.raw").model_copy(update={"unique_id": "model.shop.raw"})
    found = orphans(deployed(RAW, CLEAN, REPORT, other), of_project(project))
    assert {each.stream: each.reasons[0] for each in found} == {
        "shop.clean": "its model writes shop.clean_clicks now",
        "shop.report": "its model is no longer a dynamic table of the project",
    }
    assert "--prune" in str(found[0].next_step)


def test_an_orphan_that_a_stream_which_goes_on_reads_is_kept_and_so_is_what_it_reads() -> None:
    names = stream("shop.names").model_copy(update={"unique_id": "model.shop.names"})
    report = REPORT.model_copy(update={"inputs": (*REPORT.inputs, TableInput(relation="shop.names"))})
    there = deployed(RAW, CLEAN, names, report)
    found = {each.stream: each for each in orphans(there, of_project({"model.shop.report": "shop.report"}))}
    assert {name: each.read_by for name, each in found.items()} == {
        "shop.raw": ("shop.clean",), "shop.clean": ("shop.report",), "shop.names": ("shop.report",),
    }  # fmt: skip
    assert found["shop.raw"].reasons[-1] == "it is still read by shop.clean"
    assert "once nothing that goes on reads it" in str(found["shop.raw"].next_step)
    assert [each.read_by for each in orphans(there, of_project({}))] == [()] * 4, (
        "readers that end as well keep nothing"
    )


def test_an_orphan_is_kept_for_what_is_being_built_on_it_and_with_the_bad_records_of_what_is_kept() -> None:
    other = stream("shop.report")
    coming = {"shop.report": Deployed("shop.report", 1, other, built=Built(2, "h", REPORT))}
    asking = CLEAN.model_copy(update={"inputs": (RAW.inputs[0].model_copy(update={"on_bad_record": "quarantine"}),)})
    (bad,) = quarantines(asking)
    project = of_project({"model.shop.report": "shop.report"})
    (kept,) = orphans({**deployed(asking, bad), **coming}, project)
    assert (kept.stream, kept.read_by) == ("shop.clean", ("shop.report",))
    alone = orphans({**deployed(asking, bad), **deployed(other)}, project)
    assert [(each.stream, each.read_by) for each in alone] == [("shop.clean", ()), ("src.raw__quarantine", ())]


# -- what a rebuild costs ---------------------------------------------------------------------------------------------
class Broker:
    """A topic of two partitions: 0 has offsets 40 to 100, 1 has 0 to 10."""

    def watermarks(self, *_: Any) -> tuple[dict[int, int], dict[int, int]]:
        return {0: 40, 1: 0}, {0: 100, 1: 10}

    def offsets_at(self, *_: Any) -> dict[int, int]:
        return {0: 90, 1: 9}

    def time_of(self, *_: Any) -> float | None:
        return None

    def names(self, *_: Any) -> list[str]:
        return ["raw"]

    def close(self) -> None: ...


class MadeAnew(Broker):
    """The same after somebody deleted the topic and created it again: 0 has offsets 0 to 30, 1 has none yet."""

    def watermarks(self, *_: Any) -> tuple[dict[int, int], dict[int, int]]:
        return {0: 0, 1: 0}, {0: 30, 1: 0}


class Silent(Broker):
    def watermarks(self, *_: Any) -> tuple[dict[int, int], dict[int, int]]:
        raise BROKER_UNREACHABLE.error("No broker answers.")


def cost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    kept: str = "7 days",
    broker: Broker | None = None,
    began: str = '{"raw":{"0":0,"1":0}}',
    **changes: Any,
) -> RebuildCost:
    read = '{"raw":{"0":95,"1":10}}'
    paths = ProjectPaths(tmp_path)
    checkpoint = paths.checkpoint("shop.raw", "g1")
    for file, text in (("sources/0/0", f"\0v1\n{began}"), ("offsets/4", f"v1\n{{}}\n{read}"), ("commits/4", "v1\n{}")):
        (checkpoint / file).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / file).write_text(text)
    monkeypatch.setattr("penstock.control.rebuild_cost.retention", lambda *_: {"raw": kept})
    kafka = RAW.inputs[0].model_copy(update={"bootstrap": "b:9092", **changes})
    spec = RAW.model_copy(update={"inputs": (kafka,)})
    old = Desired("shop.raw", 1, "", "", "g1", Wanted.RUNNING, 0.0)
    return CostMeter(paths, KafkaSettings(), broker or Broker(), Asked()).measure(spec, old)


def test_messages_that_retention_removed_after_they_were_read_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cost(tmp_path, monkeypatch)
    assert (found.messages, found.lost) == (70, 40)
    assert found.words() == ("reads 70 messages of src.raw from earliest; 40 that were read before are out of reach")


def test_a_stream_that_began_where_the_topic_still_begins_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cost(tmp_path, monkeypatch, began='{"raw":{"0":40,"1":0}}').lost == 0


@pytest.mark.parametrize(
    ("began", "lost"),
    [
        ('{"raw":{"0":0,"1":0}}', (95 - 30) + 10),
        ('{"raw":{"0":40,"1":0}}', (95 - 40) + 10),  # it began beyond where the new topic ends
    ],
)
def test_what_was_read_beyond_the_end_of_a_topic_that_was_made_anew_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: str, lost: int
) -> None:
    found = cost(tmp_path, monkeypatch, broker=MadeAnew(), began=began)
    assert (found.messages, found.lost) == (30, lost)
    assert found.inputs[0].covered is False


def test_a_start_at_the_latest_message_loses_all_that_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cost(tmp_path, monkeypatch, starting="latest")
    assert (found.messages, found.lost) == (0, 105)


def test_a_start_at_offsets_and_partitions_that_are_not_read_count_as_they_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cost(tmp_path, monkeypatch, starting=FromOffsets(offsets=((0, 50),)), partitions=(0,))
    assert (found.messages, found.lost) == (50, 50)


def test_what_a_silent_broker_or_a_compacted_topic_does_not_tell_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = cost(tmp_path, monkeypatch, broker=Silent())
    assert (silent.messages, silent.lost) == (None, None)
    assert "unknown number" in silent.words()
    compacted = cost(
        tmp_path, monkeypatch, began='{"raw":{"0":40,"1":0}}', kept="the latest message of each key, for 1 day"
    )
    assert compacted.lost is None
    assert "compacted" in compacted.words()


# -- what the model says, and how it is shown -------------------------------------------------------------------------
@pytest.mark.parametrize("own", [True, False, None])
def test_the_plan_reads_full_refresh_from_the_model_s_config(own: bool | None) -> None:
    manifest = json.loads((FIXTURES / "manifest.json").read_text())
    manifest["nodes"]["model.shop.clicks_clean"]["config"]["full_refresh"] = own
    session = Session(Ui(), FIXTURES / "shop")
    found, problems = compiled_models(session, manifest, ["model.shop.clicks_clean"], everything=False)
    assert ([each.full_refresh for each in found], problems) == ([own], [])


def test_only_a_value_that_somebody_wrote_is_a_confirmation() -> None:
    filled_in = {"config": {"on_configuration_change": "apply"}, "unrendered_config": {"materialized": "dynamic_table"}}
    written = filled_in | {"unrendered_config": {"on_configuration_change": "apply"}}
    assert (on_change(filled_in), on_change(written)) == ("fail", "apply")


def test_the_plan_as_markdown_is_a_table_with_a_summary() -> None:
    (planned,) = plan_streams([Model(CHANGED)], deployed(RAW))
    text = markdown([judged(planned, RebuildCost((InputCost("src.raw", "earliest", 7, 2),)))])
    assert text.startswith("### Streams: 1 REFUSED\n")
    assert "| `shop.raw` | **REFUSED** | output mode append -&gt;" not in text
    assert "output mode append -> upsert<br>reads 7 messages of src.raw" in text
    assert summary([]) == "no streams"
