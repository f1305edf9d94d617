"""Quarantines on the pure side: their specs, when they are no longer needed, and which records a stream has passed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from source_files import column, compiled, table

from penstock.compiler import StreamSpec, Verdict, plan_change, quarantines, render_job
from penstock.compiler.passed import Reading, between, passed
from penstock.compiler.quality import BAD, PARTLY
from penstock.compiler.quarantine import same_definition
from penstock.compiler.spec import KafkaInput
from penstock.control.planning import Deployed, Project, orphans
from penstock.store import Store

SETTINGS = "{topic: t, on_bad_record: quarantine, watermark: {column: at, delay: 1 minute}}"
COLUMNS = (column("a", "int"), column("b", "string"), column("at", "timestamp", **{"from": "timestamp"}))


def kept(tmp_path: Path, *columns: str, **more: str) -> StreamSpec:
    (found,) = quarantines(compiled(table(SETTINGS, *(columns or COLUMNS)), tmp_path, **more))
    return found


def source_of(spec: StreamSpec) -> KafkaInput:
    source = spec.inputs[0]
    assert isinstance(source, KafkaInput)
    return source


def test_a_source_has_one_quarantine_whichever_model_asks_for_it(tmp_path: Path) -> None:
    one = kept(tmp_path)
    other = kept(tmp_path, name="mart.other", sql="select count(*) as n from shop.clicks as shop__clicks")
    assert (one.name, one.output.relation, one.is_quarantine) == ("shop.clicks__quarantine",) * 2 + (True,)
    assert one.hash == other.hash
    again = StreamSpec.from_json(one.to_json())
    assert (again, again.is_quarantine) == (one, True)
    assert quarantines(one) == []
    assert quarantines(compiled(table("{topic: t}"), tmp_path)) == []


def test_a_quarantine_takes_what_does_not_fit_as_it_came(tmp_path: Path) -> None:
    job = render_job(kept(tmp_path))
    assert "where quality in ('bad', 'partly bad')" in job
    assert '.option("includeHeaders", "true")' in job
    assert "withWatermark" not in job
    for name in ("topic", "partition", "offset", "timestamp", "key", "headers", "value"):
        assert f"    `{name}`,\n" in job


def test_a_corrected_column_restarts_the_quarantine_and_keeps_what_it_holds(tmp_path: Path) -> None:
    plan = plan_change(kept(tmp_path), kept(tmp_path, column("a", "string"), *COLUMNS[1:]))
    assert plan.verdict is Verdict.RESTART


def test_a_quarantine_is_an_orphan_once_no_stream_asks_for_it(tmp_path: Path) -> None:
    model = compiled(table(SETTINGS, *COLUMNS), tmp_path)
    silent = compiled(table(SETTINGS, *COLUMNS), tmp_path, on_bad_record="skip")

    def found(spec: StreamSpec) -> list[str]:
        store = Store.open(tmp_path / f"{spec.hash}.db")
        deployed = {}
        for each in (spec, kept(tmp_path)):
            want = store.deploy(each.name, each.to_json(), each.hash, verdict="NEW", new_checkpoint=True)
            deployed[each.name] = Deployed(want.stream, want.generation, each)
        return [each.stream for each in orphans(deployed, Project({"model.shop.m": "shop.m"}, frozenset({"shop"})))]

    assert found(model) == []
    assert found(silent) == ["shop.clicks__quarantine"]


# -- what a stream has passed -----------------------------------------------------------------------------------------
def reading(tmp_path: Path, kind: str, choice: str, began: dict[str, dict[str, int]]) -> Reading:
    spec = compiled(table("{topic: t}", column("a", kind)), tmp_path, on_bad_record=choice)
    return Reading(source_of(spec), began)


def test_only_what_was_decoded_otherwise_was_passed(tmp_path: Path) -> None:
    old, new = (reading(tmp_path, kind, "quarantine", {"t": {"0": at}}) for kind, at in (("int", 0), ("string", 7)))
    assert not same_definition(old.source, new.source)
    assert passed([new]) == []
    assert passed([new, new]) == []
    (found,) = passed([old, new])
    assert (found.qualities, found.source) == ((BAD, PARTLY), old.source)
    assert found.places == "(topic = 't' and `partition` = 0 and `offset` >= 0 and `offset` < 7)"


def test_with_null_a_partly_bad_record_was_a_row_and_with_fail_none_was_passed(tmp_path: Path) -> None:
    new = reading(tmp_path, "string", "quarantine", {"t": {"0": 7}})
    (found,) = passed([reading(tmp_path, "int", "null", {}), new])
    assert found.qualities == (BAD,)
    assert passed([reading(tmp_path, "int", "fail", {}), new]) == []


offsets = st.dictionaries(
    st.sampled_from(["t", "it's", "u"]), st.dictionaries(st.sampled_from(["0", "1"]), st.integers(0, 6)), max_size=3
)


@settings(deadline=None)
@given(begin=offsets, end=offsets)
def test_places_are_those_from_one_beginning_to_the_next(
    begin: dict[str, dict[str, int]], end: dict[str, dict[str, int]]
) -> None:
    condition = between(begin, end).replace("\\'", "''")  # Spark's way to write it, and SQLite's
    places = [(topic, partition, offset) for topic in ("t", "it's", "u") for partition in (0, 1) for offset in range(8)]
    with sqlite3.connect(":memory:") as database:
        database.execute("create table records (topic text, `partition` integer, `offset` integer)")
        database.executemany("insert into records values (?, ?, ?)", places)
        found = set(database.execute(f"select * from records where {condition}"))
    assert found == {
        (topic, partition, offset)
        for topic, partition, offset in places
        if begin.get(topic, {}).get(str(partition), 0) <= offset < end.get(topic, {}).get(str(partition), 0)
    }


def test_a_generation_begins_once(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.db")
    store.record_beginning("shop.m", 1, {"shop.clicks": {"t": {"0": 5}}})
    store.record_beginning("shop.m", 1, {"shop.clicks": {"t": {"0": 9}}})
    store.record_beginning("shop.m", 2, {})
    assert store.beginnings("shop.m") == {1: {"shop.clicks": {"t": {"0": 5}}}, 2: {}}
