"""Penstock: a dbt project, running as Spark streams."""

__version__ = "0.1.0"
