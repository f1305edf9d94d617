"""The Dagster code location of a Penstock project."""
