"""Stream shop.views_per_minute, compiled by Penstock from models/views_per_minute.sql.

Change the model, not this file. Run it alone:
spark-submit --jars "$(penstock jars)" job.py --checkpoint DIR
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from penstock.engine import runtime

SQL = """
select
    window.start as minute,
    c.item_id,
    count(*) as views
from shop__clicks_clean as c
group by window(c.clicked_at, '1 minute'), c.item_id
"""


def shop__clicks_clean(spark: SparkSession) -> DataFrame:
    """The new rows of shop.clicks_clean."""
    reader = spark.readStream.format("delta").option("maxBytesPerTrigger", "64m")
    return reader.table("shop.clicks_clean").withWatermark("clicked_at", "10 minutes")


def build(spark: SparkSession) -> DataFrame:
    """The rows of shop.views_per_minute, as a streaming DataFrame."""
    shop__clicks_clean(spark).createOrReplaceTempView("shop__clicks_clean")
    return spark.sql(SQL)


STREAM = runtime.Stream(
    name="shop.views_per_minute",
    build=build,
    table="shop.views_per_minute",
    mode="upsert",
    keys=("minute", "item_id"),
    time_window_ms=2000,
    continuous=False,
    shuffle_partitions=4,
    small_batch_rows=200000,
    stateful=True,
)


if __name__ == "__main__":
    runtime.main(STREAM)
