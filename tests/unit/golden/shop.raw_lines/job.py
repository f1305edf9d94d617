"""Stream shop.raw_lines, compiled by Penstock from models/raw_lines.sql.

Change the model, not this file. Run it alone:
spark-submit --jars "$(penstock jars)" job.py --checkpoint DIR
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.engine import runtime

SQL = """
select * from shop__lines as lines
"""


def headers() -> Column:
    """All headers as a map. A map takes a name once: the last one counts."""
    names = F.reverse(F.transform("headers", lambda each: each["key"]))

    def is_last(each: Column, index: Column) -> Column:
        return F.array_position(names, each["key"]) == F.size("headers") - index

    return F.map_from_entries(F.filter("headers", is_last))


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
    return records.select(
        F.col("value").cast("string").alias("line"),
        headers().cast("map<string, string>").alias("headers"),
        F.col("partition").alias("partition"),
        F.col("offset").alias("position"),
        F.col("topic").alias("topic"),
    )


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
