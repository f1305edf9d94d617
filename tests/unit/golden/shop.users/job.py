"""Stream shop.users, compiled by Penstock from sources/shop.yml.

Change the source, not this file. Run it alone:
spark-submit --jars "$(penstock jars)" job.py --checkpoint DIR
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from penstock.engine import runtime

SQL = """
select
    `user_id`,
    `country`,
    `name`,
    `tags`,
    `_penstock_partition`,
    `_penstock_offset`,
    `_penstock_timestamp`,
    `_penstock_deleted`
from shop__users
where `country` is not null and `user_id` is not null
"""


SHOP__USERS__JUDGED = """
select
    *,
    case
        when `value` is null or length(`value`) = 0 then 'empty'
        when message.`name` is not null
            or message.`tags` is not null
            then if(
                message.`_unfit` is not null
                or message_key.`_unfit` is not null,
                'partly bad',
                'good'
            )
        when message.`_unfit` is null
            and (
                coalesce(size(json_object_keys(cast(`value` as string))), 0) < 1
                or arrays_overlap(json_object_keys(cast(`value` as string)), array('name', 'tags'))
            )
            then 'empty'
        else 'bad'
    end as quality
from (
    select
        *,
        from_json(
            cast(`key` as string),
            '`id` BIGINT, `country` STRING, `_unfit` STRING',
            map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_unfit')
        ) as message_key,
        from_json(
            cast(`value` as string),
            '`name` STRING, `tags` ARRAY<STRING>, `_unfit` STRING',
            map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_unfit')
        ) as message
    from shop__users__records
)
"""


SHOP__USERS = """
select
    message_key.`id` as `user_id`,
    message_key.`country` as `country`,
    message.`name` as `name`,
    message.`tags` as `tags`,
    concat(topic, '-', `partition`) as `_penstock_partition`,
    `offset` as `_penstock_offset`,
    `timestamp` as `_penstock_timestamp`,
    `value` is null as `_penstock_deleted`
from shop__users__judged
where quality in ('good', 'partly bad') or `value` is null
"""


def shop__users(spark: SparkSession) -> DataFrame:
    """Source shop.users: topic 'users', JSON values."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.fetch.max.wait.ms", 20)
        .options(**runtime.kafka_options(spark, None))
        .option("subscribe", "users")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 200000)
        .option("failOnDataLoss", "true")
        .load()
    )
    records.createOrReplaceTempView("shop__users__records")
    judged = runtime.counted(spark, "shop.users", SHOP__USERS__JUDGED)
    judged.createOrReplaceTempView("shop__users__judged")
    return runtime.rows(spark, "shop.users", SHOP__USERS)


def build(spark: SparkSession) -> DataFrame:
    """The rows of shop.users, as a streaming DataFrame."""
    shop__users(spark).createOrReplaceTempView("shop__users")
    return spark.sql(SQL)


STREAM = runtime.Stream(
    name="shop.users",
    build=build,
    table="penstock__shop.users",
    view="shop.users",
    mode="upsert",
    keys=("country", "user_id"),
    time_window_ms=1000,
    continuous=True,
    shuffle_partitions=2,
    small_batch_rows=200000,
    stateful=False,
    changes=runtime.Changes(
        partition="_penstock_partition",
        offset="_penstock_offset",
        timestamp="_penstock_timestamp",
        deleted="_penstock_deleted",
    ),
)


if __name__ == "__main__":
    runtime.main(STREAM)
