"""The deployment store: desired and actual state, leases, commands, bounded history.

Rules
- Every method is one short transaction; nothing is held between two of them.
- Reads are snapshots; only writes wait for each other (database.py).
- Time comes in as an argument where a decision depends on it, so that tests set the clock.
- A fencing token only ever rises, per lease name, across processes and restarts.
"""

from penstock.store.holder import holder_id, holder_is_dead, holder_name, parse_holder
from penstock.store.records import (
    Actual,
    Command,
    DeployedSource,
    Desired,
    Lease,
    LinkKind,
    Part,
    Progress,
    Rebuild,
    RebuildLink,
    RebuildPhase,
    RecordCounts,
    StreamState,
    Wanted,
)
from penstock.store.store import Store

__all__ = [
    "Actual",
    "Command",
    "DeployedSource",
    "Desired",
    "Lease",
    "LinkKind",
    "Part",
    "Progress",
    "Rebuild",
    "RebuildLink",
    "RebuildPhase",
    "RecordCounts",
    "Store",
    "StreamState",
    "Wanted",
    "holder_id",
    "holder_is_dead",
    "holder_name",
    "parse_holder",
]
