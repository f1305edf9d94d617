"""Dagster for a Penstock project: dynamic tables as long-lived assets, with sensors for health, lag and restart.

    from penstock.dagster import penstock_definitions

    defs = penstock_definitions("path/to/project")

Needs the extra `penstock[orchestration]`; nothing outside of this package imports it.

Rules
- What has to be decided is decided by pure functions (findings, telling, restarting, alerts_of) over a `World`, which
  is read from the deployment store. Sensors only carry their answers to Dagster.
- Built on dagster-dbt's translator and events.
"""

from penstock.dagster.component import PenstockComponent
from penstock.dagster.definitions import penstock_definitions
from penstock.dagster.translator import PenstockTranslator

__all__ = ["PenstockComponent", "PenstockTranslator", "penstock_definitions"]
