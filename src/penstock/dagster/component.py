"""The same code location as a Dagster component, for those who write YAML:

type: penstock.dagster.PenstockComponent
attributes:
  project_dir: ../shop
"""

from dataclasses import dataclass

from dagster import Component, ComponentLoadContext, Definitions, Resolvable

from penstock.control.health import DEFAULT_LIMITS
from penstock.dagster.definitions import DATA_TESTS, penstock_definitions
from penstock.dagster.purge import KEEP_DAYS


@dataclass
class PenstockComponent(Component, Resolvable):
    """A Penstock project as Dagster assets, checks, jobs and sensors."""

    project_dir: str
    profiles_dir: str | None = None
    target: str | None = None
    max_lag: float = DEFAULT_LIMITS.max_lag_seconds
    data_tests: str | None = DATA_TESTS
    keep_days: float | None = KEEP_DAYS

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Paths are relative to the file that names them."""
        base = context.path
        return penstock_definitions(
            (base / self.project_dir).resolve(),
            profiles_dir=(base / self.profiles_dir).resolve() if self.profiles_dir else None,
            target=self.target,
            max_lag=self.max_lag,
            data_tests=self.data_tests,
            keep_days=self.keep_days,
        )
