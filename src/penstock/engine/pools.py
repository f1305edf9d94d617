"""Who gets the cores: the pools of Spark's scheduler.

Rules
- Between pools Spark takes the one that has the fewest tasks, measured by its share, and of equals the first **by
  name**. With more pools than cores the last ones of the alphabet would never get a turn, so there are a few pools, not
  one for each stream.
- People come first: dbt, `penstock query`, notebooks. Then the batches of streams, which are small and bounded, each in
  its turn. What takes long has what is left: full refreshes, rebuilds, histories, the search for a record at fault.
- Of streams and of what takes long each has a core to itself while nobody waits for an answer.
- Streams in real time hold their cores for as long as they run: they are apart, and nobody's share.
"""

from __future__ import annotations

from pyspark import SparkContext

PEOPLE = "default"  # Spark's own name, for whoever says nothing
STREAMS = "streams"
LONG = "long"
REAL_TIME = "real_time"

XML = f"""<?xml version="1.0"?>
<allocations>
  <pool name="{PEOPLE}"><schedulingMode>FAIR</schedulingMode><weight>4</weight><minShare>1</minShare></pool>
  <pool name="{STREAMS}"><schedulingMode>FIFO</schedulingMode><weight>2</weight><minShare>1</minShare></pool>
  <pool name="{LONG}"><schedulingMode>FIFO</schedulingMode><weight>1</weight><minShare>0</minShare></pool>
  <pool name="{REAL_TIME}"><schedulingMode>FIFO</schedulingMode><weight>1</weight><minShare>0</minShare></pool>
</allocations>
"""


def enter(context: SparkContext, pool: str) -> None:
    """Have the jobs of this thread, and of threads that Spark starts for it, run in a pool."""
    context.setLocalProperty("spark.scheduler.pool", pool)
