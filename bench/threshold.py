"""delta-rs against Spark's writer by the size of the batch: where `small_batch_rows` belongs.

Rules
- Both go through the engine's own sink with the engine's own session settings; a batch is read from Kafka and decoded
  as in a stream, so that a duration is all that happens between the trigger and the commit.
- A merge meets a table of 100,000 rows; half of the batch's keys are in it.
- Every measurement has a table of its own, copied from the same one; the writers take turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.feed import preload
from bench.report import median, note, ratio, table
from bench.site import MEMORY, SCHEMA, Site, site

SIZES = (100, 1_000, 10_000, 20_000, 50_000, 100_000, 200_000)
_PARTITIONS = 2
_BASE = 50_000  # rows of each partition that the table of the merges has


def run(*, quick: bool, rounds: int | None, rows: int | None) -> None:
    """Print the durations of both writers, append and merge."""
    sizes = [rows] if rows else list(SIZES[1::2] if quick else SIZES)
    rounds = rounds or (2 if quick else 5)
    with site(engine=False) as place:
        topic = place.topic("batches", _PARTITIONS)
        needed = max(_BASE * 2, max(sizes)) * 12 // 10  # keys do not fall evenly on the partitions
        preload(place.bootstrap, topic, needed)
        found: dict[tuple[str, int, str], list[float]] = {}
        for line in _child(place, topic, sizes, rounds):
            found.setdefault((line["mode"], line["rows"], line["writer"]), []).append(line["seconds"] * 1000)
    lines = []
    for mode in ("append", "upsert"):
        for size in sizes:
            ours, theirs = median(found[mode, size, "delta-rs"]), median(found[mode, size, "spark"])
            lines.append([mode, f"{size:,}", f"{ours:.0f} ms", f"{theirs:.0f} ms", ratio(ours, theirs)])
    table(
        f"Trigger to commit by batch size, median of {rounds}",
        ["mode", "rows", "delta-rs", "Spark's writer", "Spark / delta-rs"],
        lines,
    )


def _child(place: Site, topic: str, sizes: list[int], rounds: int) -> Iterator[dict[str, Any]]:
    """A Spark application of its own; what it measured, line by line."""
    command = [
        *(sys.executable, "-m", "bench.threshold", str(place.paths.project), place.bootstrap, topic),
        *("--rounds", str(rounds), "--sizes", *map(str, sizes)),
    ]
    log = place.paths.project / "threshold.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=Path(__file__).parent.parent
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for text in process.stdout:
                if text.startswith("{"):
                    line = json.loads(text)
                    note(f"{line['mode']}, {line['rows']:,} rows, {line['writer']}: {line['seconds'] * 1000:.0f} ms")
                    yield line
        finally:
            if process.poll() is None and sys.exc_info()[0] is not None:
                process.terminate()
    if process.returncode:
        raise RuntimeError(log.read_text()[-2000:])


# -- the application ---------------------------------------------------------------------------------------------------
def main() -> None:
    from penstock.engine import session
    from penstock.paths import ProjectPaths
    from penstock.project.profile import EngineSettings, RuntimeSettings

    parser = argparse.ArgumentParser()
    parser.add_argument("project", type=Path)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    arguments = parser.parse_args()
    paths = ProjectPaths(arguments.project)
    settings = RuntimeSettings(target="bench", schema=SCHEMA, engine=EngineSettings(memory=MEMORY))
    spark = session.create(paths, settings, port=session.free_port(), token="bench")
    base = arguments.project / "base"
    rows = _batch(spark, arguments.bootstrap, arguments.topic, 0, _BASE)
    rows.write.format("delta").save(str(base))
    empty = arguments.project / "empty"
    rows.limit(0).write.format("delta").save(str(empty))
    for number in range(-1, arguments.rounds):  # the first is for warming up
        for mode, source in (("append", empty), ("upsert", base)):
            for size in arguments.sizes if number >= 0 else [1_000, 20_000]:
                half = size // _PARTITIONS
                start = max(_BASE - half // 2, 0)
                batch = _batch(spark, arguments.bootstrap, arguments.topic, start, start + half)
                for writer in ("delta-rs", "spark"):
                    seconds = _write(batch, size, mode, writer, source, arguments.project / "copy", arguments.topic)
                    line = {"mode": mode, "rows": size, "writer": writer, "seconds": seconds}
                    if number >= 0:
                        print(json.dumps(line), flush=True)
    spark.stop()


def _batch(spark: Any, bootstrap: str, topic: str, start: int, end: int) -> Any:
    """Messages of a stretch of the topic, decoded."""
    from pyspark.sql import functions as F

    from bench.handwritten import SCHEMA as CLICK

    offsets = {str(partition): {"start": start, "end": end} for partition in range(_PARTITIONS)}
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.fetch.max.wait.ms", 20)
        .option("subscribe", topic)
        .option("startingOffsets", json.dumps({topic: {p: each["start"] for p, each in offsets.items()}}))
        .option("endingOffsets", json.dumps({topic: {p: each["end"] for p, each in offsets.items()}}))
        .load()
    )
    click = F.from_json(F.col("value").cast("string"), CLICK).alias("click")
    return records.select(F.col("key").cast("string").alias("user_id"), click, F.col("timestamp").alias("at")).select(
        "user_id", "click.*", "at"
    )


def _write(batch: Any, size: int, mode: str, writer: str, source: Path, copy: Path, topic: str) -> float:
    """Seconds that the engine's sink takes for the batch."""
    from penstock.engine.sink import TableWriter, Target

    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy / "table")
    checkpoint = copy / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    for number, end in ((0, 0), (1, size)):  # as Spark writes them: the sink reads the batch's size from them
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps({topic: {'0': end}})}\n")
    target = Target(
        stream="bench.batches",
        table="bench.batches",
        path=str(copy / "table"),
        mode=mode,
        keys=("event_id",) if mode == "upsert" else (),
        checkpoint=checkpoint,
        checkpoint_id="bench",
        small_batch_rows=size if writer == "delta-rs" else 0,
        stateful=False,
    )
    sink = TableWriter(target, 1)
    sink.fence()
    began = time.perf_counter()
    sink(batch, 1)
    taken = time.perf_counter() - began
    written = sink.written(1)
    if written is None or written.writer != writer or not written.rows:
        raise RuntimeError(f"{writer} was asked for, but: {written}")
    return taken


if __name__ == "__main__":
    main()
