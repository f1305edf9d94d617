"""Stream shop.busy_minutes, compiled by Penstock from models/busy_minutes.sql.

Change the model, not this file. Run it alone:
spark-submit --jars "$(penstock jars)" job.py --checkpoint DIR
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from penstock.engine import runtime

SQL = """
select * from shop__views_per_minute
"""


def shop__views_per_minute(spark: SparkSession) -> DataFrame:
    """The changes of shop.views_per_minute: rows as they are now, and rows that are gone."""
    return runtime.changes_of(spark, "shop.views_per_minute")


def build(spark: SparkSession) -> DataFrame:
    """The rows of shop.busy_minutes, as a streaming DataFrame of the rows that they follow."""
    shop__views_per_minute(spark).createOrReplaceTempView("shop__views_per_minute")
    return spark.sql(SQL)


FOLLOW = """
select minute as at, item_id, views
from shop__views_per_minute as views_per_minute
where views > 100
"""


def follow(rows: DataFrame) -> DataFrame:
    """The rows of shop.busy_minutes that changed rows make now; of others, none."""
    rows.createOrReplaceTempView("shop__views_per_minute")
    return rows.sparkSession.sql(FOLLOW)


STREAM = runtime.Stream(
    name="shop.busy_minutes",
    build=build,
    table="shop.busy_minutes",
    mode="upsert",
    keys=("at", "item_id"),
    time_window_ms=1000,
    continuous=False,
    shuffle_partitions=2,
    small_batch_rows=200000,
    stateful=False,
    follow=runtime.Follow(follow, keys=("minute", "item_id")),
)


if __name__ == "__main__":
    runtime.main(STREAM)
