"""What lies behind a failure of Spark, by the words of its text. No Spark in here."""

from __future__ import annotations

import re

from penstock.errors import Kind
from penstock.errors.catalogue import (
    AUTH_REFUSED,
    BROKER_UNREACHABLE,
    CONSTRAINT_BROKEN,
    DISK_FULL,
    INPUT_REBUILT,
    OFFSETS_LOST,
    TOPIC_MISSING,
)

# The first pattern that is found in the text decides.
KNOWN: tuple[tuple[str, Kind, str], ...] = (
    (r"No space left on device|Disk quota exceeded|StorageFull", DISK_FULL, "there is no room left on the disk."),
    (r"UnknownTopicOrPartition|This server does not host this topic", TOPIC_MISSING, "its topic is gone."),
    (
        r"KAFKA_DATA_LOSS|Cannot fetch offset|OffsetOutOfRange|offset was changed from",
        OFFSETS_LOST,
        "messages that were not read yet are gone from the topic.",
    ),
    (
        r"SaslAuthenticationException|SslAuthenticationException|SSLHandshakeException|Invalid PEM|Failed to load PEM",
        AUTH_REFUSED,
        "the broker and the credentials do not fit.",
    ),
    (
        r"TimeoutException.*(?:metadata|node assignment|listOffsets|describeTopics)|No resolvable bootstrap|Failed to (?:create new KafkaAdminClient|construct kafka)",  # noqa: E501
        BROKER_UNREACHABLE,
        "the broker does not answer.",
    ),
    (
        r"rows failed validation check|DELTA_VIOLATE_CONSTRAINT|DELTA_NOT_NULL_CONSTRAINT_VIOLATED|CHECK constraint",
        CONSTRAINT_BROKEN,
        "a row does not hold a constraint of the table.",
    ),
    (r"DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE", INPUT_REBUILT, "the table it reads was made anew."),
)


def cause(text: str) -> tuple[Kind, str] | None:
    """The kind of the failure and what is wrong, in words that go on after a name; None for any other."""
    for pattern, kind, message in KNOWN:
        if re.search(pattern, text, re.DOTALL):
            return kind, message
    return None
