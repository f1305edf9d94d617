"""How often a stream that has nothing to do asks its inputs.

Rules
- A look is a question to the broker, which costs both of them. A few streams may look forty times a second, which keeps
  their rows fresh; fifty that do so take the cores from those that have something to do.
- So a stream rests the longer the more there are when it starts: all of them together look about as often as a few.
- Whoever starts a query decides: Spark reads the setting once. A stream keeps its rest until it is started again.
- What the profile's `spark_conf` says of the setting is the rest of a few.
"""

from __future__ import annotations

CONF = "spark.sql.streaming.pollingDelay"
SHORTEST, LONGEST = 25, 200  # milliseconds
_FEW = 2  # streams


def rest_ms(streams: int, shortest: int = SHORTEST) -> int:
    """How long a stream rests after a look that found nothing, one of so many."""
    return min(max(shortest * streams // _FEW, shortest), max(LONGEST, shortest))
