"""Tables on updating tables, and filters above aggregates: rows come, change and go, in a real engine."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from model_files import Project

if TYPE_CHECKING:
    from tests.conftest import MakeTopic, Platform, Produce
else:
    MakeTopic = Platform = Produce = Any

pytestmark = pytest.mark.timeout(600)


def test_rows_that_no_longer_pass_a_filter_vanish_whoever_writes_them(
    platform: Platform, schema: str, topic: MakeTopic, produce: Produce
) -> None:
    project = Project(schema)
    events = topic(3)
    project.source("events", events, {"k": "string", "v": "bigint"})
    good = project.table("good")
    counts = "select k, count(*) as n, sum(v) as total from {events} group by k"
    project.model("counts", counts)
    project.model("rare", f"{counts} having count(*) < 4")
    project.model("rare_by_spark", f"{counts}\nhaving count(*) < 4", small_batch_rows=0)
    project.model(
        "rare_in_cte", f"with counted as ({counts})\nselect k as id, n from counted where n < 4 and k <> 'k0'"
    )
    sums = "select k, v is distinct from null as d, sum(v) as v\nfrom {events} group by k, v is distinct from null"
    project.model("even", f"{sums} having v % 2 = 0 and k <> 'k1';")
    project.model("one_row", "select count(*) as n from {events} having count(*) % 2 = 0")
    changes = "select n * 10 as tens, k as name from {counts} left semi join {good} good using (k) where n < 4"
    project.model("followed", changes)
    project.model("followed_by_spark", changes, small_batch_rows=0)
    project.model("twice", "select name, tens + 1 as t from {followed}")
    project.model("sums", "select count(*) as keys, sum(n) as n from {counts}")
    platform.sql(f"create schema {schema}")
    platform.sql(f"create table {good} (k string) using delta")
    platform.sql(f"insert into {good} select concat('k', id) from range(7)")
    specs = project.specs()
    assert [name for name, spec in specs.items() if spec.is_full] == ["sums"]
    assert {name for name, spec in specs.items() if spec.follow} == {
        "rare", "rare_by_spark", "rare_in_cte", "even", "one_row", "followed", "followed_by_spark", "twice",
    }  # fmt: skip
    for spec in specs.values():
        platform.deploy(spec)

    chance, sent = random.Random(5), [Counter[str](), Counter[str]()]
    for _ in range(2):
        batch = [(f"k{chance.randrange(9)}", chance.randrange(100)) for _ in range(12)]
        for key, value in batch:
            sent[0][key] += 1
            sent[1][key] += value
        produce(events, [(key, {"k": key, "v": value}) for key, value in batch])
        n, total = sent
        rare = sorted((key, n[key], total[key]) for key in n if n[key] < 4)
        followed = sorted((n[key] * 10, key) for key in n if n[key] < 4 and key not in ("k7", "k8"))
        want = {
            "counts": sorted((key, n[key], total[key]) for key in n),
            "rare": rare,
            "rare_by_spark": rare,
            "rare_in_cte": [(key, count) for key, count, _ in rare if key != "k0"],
            "even": sorted((key, True, total[key]) for key in n if total[key] % 2 == 0 and key != "k1"),
            "one_row": [(n.total(),)],
            "followed": followed,
            "followed_by_spark": followed,
            "twice": sorted((key, tens + 1) for tens, key in followed),
            "sums": [(len(n), n.total())],
        }
        for name, rows in want.items():
            platform.until(
                lambda name=name, rows=rows: sorted(platform.sql(f"select * from {schema}.{name}")) == rows,
                f"the rows of {name}", 60,
                lambda name=name, rows=rows: (
                    sorted(platform.sql(f"select * from {schema}.{name}")),
                    rows,
                    platform.store.actual(f"{schema}.{name}"),
                ),
            )  # fmt: skip
    assert any(n[key] >= 4 for key in n), "some keys passed the filter, and no longer do"
    produce(events, [("k0", {"k": "k0", "v": 1})])
    platform.until(lambda: platform.sql(f"select * from {schema}.one_row") == [], "no row for an odd number", 60)
    writers = {name: {batch.writer for batch in platform.store.progress(f"{schema}.{name}") if batch.rows_out}
               for name in ("followed", "followed_by_spark", "rare", "rare_by_spark")}  # fmt: skip
    assert writers == {
        "followed": {"delta-rs"}, "followed_by_spark": {"spark"}, "rare": {"delta-rs"}, "rare_by_spark": {"spark"},
    }  # fmt: skip
