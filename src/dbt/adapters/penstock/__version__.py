"""The adapter's version is the package's; its first two numbers are those of dbt-core that it is made for."""

version = "1.11.0"
