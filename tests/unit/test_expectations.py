"""What a model expects of its rows: how it is read, and what becomes of rows that are otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.compiler import Plan, Verdict, plan_change, render_job
from penstock.compiler.spec import Column, KafkaInput, Output, OutputMode, StreamSpec
from penstock.engine.changed_rows import GONE
from penstock.engine.culprit import is_of_records
from penstock.engine.expectations import HELD, Judge
from penstock.engine.failures import of_stream
from penstock.errors import PenstockError
from penstock.errors.catalogue import EXPECTATION_BROKEN, EXPECTATION_INVALID
from penstock.project.expectations import Expectation, read_expectations
from penstock.store import Progress, Store

WARN = Expectation(name="named", expect="k <> ''")
DROP = Expectation(name="positive", expect="v > 0", on_violation="drop")
FAIL = Expectation(name="v < 9", expect="v < 9", on_violation="fail")


def judged(*held: list[bool] | None, **more: list[bool]) -> pa.Table:
    return pa.table({"v": list(range(len(held))), HELD: pa.array(held, pa.list_(pa.bool_())), **more})


def judge(*expectations: Expectation, deletes: bool = False) -> Judge:
    return Judge("shop.a", expectations, deletes)


def test_expectations_are_read_and_named() -> None:
    found = read_expectations([
        {"name": "named", "expect": "k <> ''"},
        {"name": "positive", "expect": "v > 0", "on_violation": "drop"},
        {"expect": "v\n  < 9", "on_violation": "fail"},
    ])  # fmt: skip
    assert found == (WARN, DROP, FAIL)
    assert read_expectations([]) == ()


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("v > 0", "Write a list of"),
        (["v > 0"], "Write a list of"),
        ([{"expect": ""}], "'expect' is a condition in SQL"),
        ([{"expect": "v > 0", "on_violation": "ignore"}], "'on_violation' is one of warn, drop, fail."),
        ([{"expects": "v > 0"}], "It has no 'expects'; it has name, expect, on_violation."),
        ([{"expect": "v > 0"}, {"expect": "v  > 0"}], "Two of them are called 'v > 0'"),
    ],
)
def test_what_is_wrong_with_them_is_told(value: object, hint: str) -> None:
    found = read_expectations(value)
    assert isinstance(found, str)
    assert found.startswith(hint)


def test_warn_counts_and_takes_every_row() -> None:
    rows, counts = judge(WARN).taken(judged([True], [False], [False]))
    assert rows.to_pydict() == {"v": [0, 1, 2]}
    assert counts == {"named": 2}


def test_drop_counts_and_leaves_rows_out() -> None:
    rows, counts = judge(WARN, DROP).taken(judged([False, True], [True, False], [False, False]))
    assert rows.to_pydict() == {"v": [0]}
    assert counts == {"named": 2, "positive": 2}
    rows, counts = judge(DROP).taken(judged())
    assert (rows.num_rows, counts) == (0, {"positive": 0})


def test_of_a_table_that_follows_the_row_of_the_key_goes() -> None:
    rows, _ = judge(DROP, deletes=True).taken(judged([True], [False]))
    assert rows.to_pydict() == {"v": [0, 1], GONE: [False, True]}
    rows, counts = judge(DROP, deletes=True).taken(judged([True], [False], None, **{GONE: [False, False, True]}))
    assert rows.to_pydict() == {"v": [0, 1, 2], GONE: [False, True, True]}
    assert counts == {"positive": 1}, "a row that deletes is not judged"


def test_fail_stops_and_names_the_expectation() -> None:
    assert judge(FAIL).taken(judged([True]))[1] == {"v < 9": 0}
    with pytest.raises(PenstockError) as caught:
        judge(DROP, FAIL).taken(judged([True, False], [False, False]))
    assert caught.value.kind is EXPECTATION_BROKEN
    assert caught.value.message == "shop.a: 2 rows do not hold v < 9."


def spec(*expectations: Expectation, stateful: bool = False) -> StreamSpec:
    clicks = KafkaInput(
        view="clicks", relation="shop.clicks", topic="clicks", columns=(Column(name="v", type="INT", origin="value.v"),)
    )
    return StreamSpec(
        name="shop.a", unique_id="model.shop.a", path="models/a.sql", sql="select v from clicks", stateful=stateful,
        inputs=(clicks,), output=Output(relation="shop.a", mode=OutputMode.APPEND), expectations=expectations,
        line_map=(4,),
    )  # fmt: skip


def test_a_changed_expectation_is_a_restart_also_of_a_stream_with_state() -> None:
    for stateful in (False, True):
        plan = plan_change(spec(WARN, stateful=stateful), spec(WARN, DROP, stateful=stateful))
        assert plan == Plan(Verdict.RESTART, ("expectations: positive",))
    assert spec().hash == spec().model_copy(update={"expectations": ()}).hash


def test_the_failure_is_the_model_s_and_of_a_record() -> None:
    problem = of_stream(EXPECTATION_BROKEN.error("shop.a: 1 row does not hold v < 9."), spec(FAIL))
    assert str(problem.at) == "models/a.sql:4"
    assert is_of_records(problem, spec(FAIL))
    assert not is_of_records(problem, spec(FAIL, stateful=True))
    assert EXPECTATION_INVALID.code == "PEN-1345"


def test_the_job_has_them(tmp_path: Path) -> None:
    long = Expectation(name="a name that says much", expect=" and ".join(f"v <> {n}" for n in range(12)))
    file = tmp_path / "job.py"
    file.write_text(render_job(spec(DROP, long)))
    assert 'runtime.Expectation(name="positive", expect="v > 0", on_violation="drop"),' in file.read_text()
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--check", "--line-length", "120", str(file)], capture_output=True
    )
    assert formatted.returncode == 0, formatted.stdout


def test_violations_add_up_and_those_of_a_refresh_count_anew(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.db")
    store.deploy("shop.a", "{}", "x", verdict="NEW", new_checkpoint=False)

    def batch(number: int, rows: int, *, anew: bool = False) -> None:
        progress = Progress("shop.a", 1, number, float(number), 1, 1, 5, "delta-rs")
        store.record_progress(progress, engine_token=1, violations={"positive": rows}, anew=anew)

    batch(1, 2)
    batch(2, 3)
    batch(3, 0)
    assert store.violations() == {"shop.a": {"positive": (5, 2.0)}}
    batch(4, 1, anew=True)
    assert store.violations() == {"shop.a": {"positive": (1, 4.0)}}
    store.deploy("shop.a", "{}", "x", verdict="REBUILD", new_checkpoint=True)
    assert store.violations() == {}
