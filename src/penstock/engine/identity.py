"""Who wrote which batch, as one number in the table's own transaction log. Pure.

Rules
- A Delta commit carries (application, version). The application is the checkpoint; the version is the engine's fencing
  token in the high bits and the batch in the low ones.
- A batch is in the table when the version's batch part has reached it, whoever wrote it.
- A writer whose token is below the version's token part has been replaced and must not write. Delta refuses two
  concurrent commits of one application, so between looking and committing nobody can slip in.
"""

from __future__ import annotations

from dataclasses import dataclass

_BATCH_BITS = 38
_BATCH_MASK = (1 << _BATCH_BITS) - 1
NO_BATCH = -1


@dataclass(frozen=True, order=True)
class Mark:
    """What an application's version in the log says."""

    token: int
    batch_id: int  # the newest batch in the table; NO_BATCH before the first

    @property
    def version(self) -> int:
        return (self.token << _BATCH_BITS) | (self.batch_id + 1)

    @classmethod
    def of(cls, version: int | None) -> Mark:
        if version is None or version < 0:
            return NOTHING
        return cls(version >> _BATCH_BITS, (version & _BATCH_MASK) - 1)


NOTHING = Mark(0, NO_BATCH)  # of a table that the application never wrote to


def application(stream: str, checkpoint_id: str) -> str:
    """The application of a checkpoint: batch numbers start again with each."""
    return f"penstock/{stream}/{checkpoint_id}"
