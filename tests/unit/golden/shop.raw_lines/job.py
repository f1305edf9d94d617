"""Stream shop.raw_lines, compiled by Penstock from models/raw_lines.sql.

Change the model, not this file. Run it alone:
spark-submit --jars "$(penstock jars)" job.py --checkpoint DIR
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from penstock.engine import runtime

SQL = """
select * from shop__lines as lines
"""


SHOP__LINES__JUDGED = """
select
    *,
    case
        when `value` is null or length(`value`) = 0 then 'empty'
        else 'good'
    end as quality
from shop__lines__records
"""


SHOP__LINES = """
select
    cast(`value` as STRING) as `line`,
    cast(
        map_from_entries(
            filter(
                headers,
                (each, i) -> array_position(reverse(transform(headers, each -> each.key)), each.key) = size(headers) - i
            )
        ) as MAP<STRING, STRING>
    ) as `headers`,
    `partition` as `partition`,
    `offset` as `position`,
    `topic` as `topic`
from shop__lines__judged
where quality in ('good', 'partly bad')
"""


def shop__lines(spark: SparkSession) -> DataFrame:
    """Source shop.lines: topic 'raw-lines', text values."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.fetch.max.wait.ms", 20)
        .options(**runtime.kafka_options(spark, None))
        .option("subscribe", "raw-lines")
        .option("startingOffsets", "latest")
        .option("maxOffsetsPerTrigger", 1000)
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .load()
    )
    records.createOrReplaceTempView("shop__lines__records")
    judged = runtime.counted(spark, "shop.lines", SHOP__LINES__JUDGED)
    judged.createOrReplaceTempView("shop__lines__judged")
    return runtime.rows(spark, "shop.lines", SHOP__LINES)


def build(spark: SparkSession) -> DataFrame:
    """The rows of shop.raw_lines, as a streaming DataFrame."""
    shop__lines(spark).createOrReplaceTempView("shop__lines")
    return spark.sql(SQL)


STREAM = runtime.Stream(
    name="shop.raw_lines",
    build=build,
    table="shop.raw_lines",
    mode="append",
    keys=(),
    time_window_ms=1000,
    continuous=True,
    shuffle_partitions=2,
    small_batch_rows=0,
    stateful=False,
)


if __name__ == "__main__":
    runtime.main(STREAM)
