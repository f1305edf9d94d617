"""The dbt adapter `penstock`: dbt-spark over Spark Connect, and streams.

Rules
- Importing the adapter imports neither pyspark nor pandas nor the store: `dbt ls` and `dbt parse` do without.
- The engine is started, if it is not up, by the first statement that needs it.
- Everything a dynamic table needs goes through one call, `adapter.deploy_stream`.
"""

from dbt.adapters.base import AdapterPlugin

from dbt.adapters.penstock.connections import PenstockConnectionManager
from dbt.adapters.penstock.credentials import PenstockCredentials
from dbt.adapters.penstock.impl import PenstockAdapter
from dbt.include import penstock

Plugin = AdapterPlugin(
    adapter=PenstockAdapter,
    credentials=PenstockCredentials,
    include_path=penstock.PACKAGE_PATH,
    dependencies=["spark"],
)

__all__ = ["PenstockAdapter", "PenstockConnectionManager", "PenstockCredentials", "Plugin"]
