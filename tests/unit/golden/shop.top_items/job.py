"""Stream shop.top_items, compiled by Penstock from models/top_items.sql.

Change the model, not this file. Run it alone:
spark-submit --jars "$(penstock jars)" job.py --checkpoint DIR
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from penstock.engine import runtime

SQL = """
select c.item_id, count(*) as clicks, max(v.views) as most_views
from shop__clicks as c
left join shop__views_per_minute as v on v.item_id = c.item_id
group by c.item_id
order by clicks desc
limit 10
"""


def shop__views_per_minute(spark: SparkSession) -> DataFrame:
    """The rows of shop.views_per_minute, as they stand."""
    return spark.table("shop.views_per_minute")


SHOP__CLICKS_TOPIC = runtime.Topic(
    relation="shop.clicks",
    topic="clicks",
    starting="earliest",
)
SHOP__CLICKS__JUDGED = """
select
    *,
    case
        when `value` is null or length(`value`) = 0 then 'empty'
        when message.`item_id` is not null
            or exists(
                array(
                    from_json(
                        cast(`value` as string),
                        '`price` DECIMAL(10,2), '
                        '`clicked_at` TIMESTAMP, '
                        '`place` STRUCT<`city`: STRING, `country`: STRING>',
                        map('mode', 'PERMISSIVE')
                    )
                ),
                rest -> rest.`price` is not null
                or rest.`clicked_at` is not null
                or rest.`place`.`city` is not null
                or rest.`place`.`country` is not null
            )
            then if(message.`_unfit` is not null, 'partly bad', 'good')
        when from_json(
                cast(`value` as string),
                '`item_id` STRING, '
                '`price` DECIMAL(10,2), '
                '`clicked_at` TIMESTAMP, '
                '`place` STRUCT<`city`: STRING, `country`: STRING>, '
                '`_unfit` STRING',
                map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_unfit')
            ).`_unfit` is null
            and (
                coalesce(size(json_object_keys(cast(`value` as string))), 0) < 1
                or arrays_overlap(
                    json_object_keys(cast(`value` as string)),
                    array('item_id', 'price', 'clicked_at')
                )
                or arrays_overlap(
                    json_object_keys(from_json(cast(`value` as string), '`place` STRING').`place`),
                    array('city', 'country')
                )
            )
            then 'empty'
        else 'bad'
    end as quality
from (
    select
        *,
        from_json(
            cast(`value` as string),
            '`item_id` STRING, `_unfit` STRING',
            map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_unfit')
        ) as message
    from shop__clicks__records
)
"""


SHOP__CLICKS = """
select
    message.`item_id` as `item_id`
from shop__clicks__judged
where quality in ('good', 'partly bad')
"""


def shop__clicks(spark: SparkSession) -> DataFrame:
    """Source shop.clicks: topic 'clicks', JSON values."""
    records = spark.read.format("kafka").options(**runtime.snapshot_options(spark, SHOP__CLICKS_TOPIC)).load()
    records.createOrReplaceTempView("shop__clicks__records")
    judged = runtime.counted(spark, "shop.clicks", SHOP__CLICKS__JUDGED)
    judged.createOrReplaceTempView("shop__clicks__judged")
    return runtime.rows(spark, "shop.clicks", SHOP__CLICKS)


def build(spark: SparkSession) -> DataFrame:
    """The rows of shop.top_items, as a DataFrame, computed anew."""
    shop__views_per_minute(spark).createOrReplaceTempView("shop__views_per_minute")
    shop__clicks(spark).createOrReplaceTempView("shop__clicks")
    return spark.sql(SQL)


STREAM = runtime.Stream(
    name="shop.top_items",
    build=build,
    table="shop.top_items",
    mode="replace",
    keys=(),
    time_window_ms=5000,
    continuous=False,
    shuffle_partitions=2,
    small_batch_rows=200000,
    stateful=False,
    definition="255d1bf411127c28",
    topics=(SHOP__CLICKS_TOPIC,),
    tables=("shop.views_per_minute",),
)


if __name__ == "__main__":
    runtime.main(STREAM)
