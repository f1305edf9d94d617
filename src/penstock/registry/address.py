"""Which registry a source's schemas are in, and with which credentials it is asked.

Rules
- A source's own registry comes before the profile's; without either, the embedded one of the project is used.
- The profile's credentials are those of its registry: a source with a registry of its own has none of them.
- Options have the names of Confluent's clients, without the prefix that they have in a source.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors.catalogue import REGISTRY_NOT_CONFIGURED, REGISTRY_UNREACHABLE
from penstock.kafka.security import Value, located
from penstock.paths import ProjectPaths

ENV = "PENSTOCK_SCHEMA_REGISTRY"
PREFIX = "schema.registry."
URL = "url"
NAMES = (
    "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location",
    "ssl.key.password",
)  # fmt: skip
STATE_FILE = "registry.json"


@dataclass(frozen=True)
class Access:
    """A registry and the options it is asked with; secrets are references still."""

    url: str
    options: dict[str, Value]
    name: str  # of its own place in the cache: the embedded registry keeps its schemas when its port changes


def access(
    own: Mapping[str, Value], profile: Mapping[str, Value], paths: ProjectPaths, *, asked: bool = True
) -> Access:
    """The registry of a source; `own` and `profile` have `url` and options, either may be empty.

    Unless it is to be `asked`, the embedded one need not run.
    """
    credentials = {name: value for name, value in own.items() if name != URL}
    if URL not in own and not credentials:
        credentials = {name: value for name, value in profile.items() if name != URL}
    options = located(credentials, paths.project)
    configured = own.get(URL) or os.environ.get(ENV) or profile.get(URL)
    if configured:
        url = str(configured)
        return Access(url, options, hashlib.sha256(url.encode()).hexdigest()[:12])
    return Access(_embedded(paths) if asked else "", options, "embedded")


def _embedded(paths: ProjectPaths) -> str:
    file: Path = paths.registry / STATE_FILE
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["url"])
    except FileNotFoundError:
        if (paths.registry / "data").is_dir():
            raise REGISTRY_UNREACHABLE.error(
                "The embedded schema registry is not running.", hint="'penstock up' starts it; its schemas are kept."
            ) from None
        raise REGISTRY_NOT_CONFIGURED.error("No address of a schema registry is known.") from None
    except (ValueError, KeyError, TypeError) as cause:
        raise REGISTRY_NOT_CONFIGURED.error(f"{file} cannot be read: {cause}.") from cause
