"""A compiled job under `spark-submit`, without an engine: the same program, the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from deltalake import DeltaTable
from published_messages import latest, read_topic

from penstock.compiler import write_target
from penstock.compiler.spec import Publish
from penstock.jars import fetch

if TYPE_CHECKING:
    from tests.conftest import MakeSpec, MakeTopic, Platform, Produce
else:
    MakeSpec = MakeTopic = Platform = Produce = Any

pytestmark = [pytest.mark.timeout(600), pytest.mark.deep]
PENSTOCK = Path(sys.executable).with_name("penstock")


def submit(job: Path, home: Path, bootstrap: str) -> None:
    """As the job's own docstring says; the catalog in a directory of the test's."""
    jars = subprocess.run([str(PENSTOCK), "jars"], capture_output=True, text=True, check=True, timeout=120).stdout
    assert jars.strip().split(",") == [str(path) for path in fetch("engine")]
    conf = {
        "spark.sql.warehouse.dir": home / "warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home / 'metastore'};create=true",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",  # Spark's 200 have 200 states each
    }
    done = subprocess.run(
        [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            "--master", "local[2]", "--driver-memory", "512m", "--jars", jars.strip(),
            *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
            str(job), "--once", "--checkpoint", str(home / "checkpoint"),
        ],
        cwd=home, capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"PENSTOCK_KAFKA": bootstrap, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


def test_a_job_alone_writes_what_the_engine_writes_and_goes_on_where_it_ended(
    platform: Platform, schema: str, make_spec: MakeSpec, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    name = topic(2)
    sql = "select k, count(*) as n, sum(v) as total from input group by k"
    spec = make_spec("counted", name, sql, keys=("k",), stateful=True)
    out = Publish(topic=f"{name}-out", key=("k",))
    job = write_target(spec.model_copy(update={"publish": out}), tmp_path / "target") / "job.py"
    home = tmp_path / "alone"
    home.mkdir()

    def alone() -> list[tuple[Any, ...]]:
        table = DeltaTable(str(home / "warehouse" / f"{schema}.db" / "counted")).to_pyarrow_table()
        return sorted((row["k"], row["n"], row["total"]) for row in table.to_pylist())

    platform.deploy(spec)
    for portion in (range(100), range(100, 150)):
        produce(name, [(f"k{n % 7}", {"k": f"k{n % 7}", "v": n}) for n in portion])
        submit(job, home, platform.bootstrap)
        rows = range(portion.stop)
        keys = sorted({f"k{n % 7}" for n in rows})
        want = [(k, sum(f"k{n % 7}" == k for n in rows), sum(n for n in rows if f"k{n % 7}" == k)) for k in keys]
        assert alone() == want
        published = latest(read_topic(platform.bootstrap, out.topic, bytes.decode, json.loads))
        assert sorted(tuple(each.values()) for each in published.values()) == want, "its topic says what its table says"
        platform.until(
            lambda want=want: sorted(platform.sql(f"select k, n, total from {spec.name}")) == want, "the engine's", 90
        )
