"""A Spark Connect session on the engine, for dbt and for `penstock query`.

PySpark is imported when the first session is opened: whoever asks nothing pays nothing.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

CONF: Mapping[str, str] = {"spark.sql.ansi.enabled": "false"}  # as in the streams
_RETRIES = 5  # about 17 s; a new engine has another port and token, so PySpark's own ten minutes would be in vain


def connect(url: str, conf: Mapping[str, str] = CONF) -> Any:
    """A new session. `url` carries the token and is not kept."""
    with warnings.catch_warnings():
        # pyspark warns of pandas 3, which only its pandas API minds.
        warnings.simplefilter("ignore", FutureWarning)
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

        # It prints every failed query as JSON on standard error; the caller shows the failure itself.
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
        session = SparkSession.builder.remote(url).config(map=dict(conf)).create()
    session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
    return session
