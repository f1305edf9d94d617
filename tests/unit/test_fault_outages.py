"""An outage is waited out; a stream that fails by itself is not."""

from __future__ import annotations

import pytest

from penstock.control.actions import Quarantine, ScheduleRetry
from penstock.control.policy import Policy
from penstock.control.reconcile import EngineView, reconcile
from penstock.errors import Kind
from penstock.errors.catalogue import BROKER_UNREACHABLE, DISK_FULL, OFFSETS_LOST, STREAM_FAILED, TOPIC_MISSING
from penstock.store import Actual, Desired, StreamState, Wanted

NOW = 10_000.0
POLICY = Policy()


def decided(kind: Kind, failures: int) -> object:
    want = Desired("shop.a", 1, "hash", "{}", "c1", Wanted.RUNNING, 0.0)
    found = Actual(
        stream="shop.a", generation=1, state=StreamState.FAILED, engine_token=1, failures=failures,
        last_failure_at=NOW, error_code=kind.code,
    )  # fmt: skip
    (action,) = reconcile([want], {"shop.a": found}, EngineView(running=True, token=1), NOW, POLICY)
    return action


@pytest.mark.parametrize("kind", [DISK_FULL, BROKER_UNREACHABLE], ids=lambda kind: kind.title)
def test_an_outage_is_waited_out_however_long_it_takes(kind: Kind) -> None:
    for failures in (0, 4, 5, 500):
        action = decided(kind, failures)
        assert isinstance(action, ScheduleRetry)
        assert NOW < action.retry_at <= NOW + POLICY.cap


@pytest.mark.parametrize("kind", [STREAM_FAILED, TOPIC_MISSING, OFFSETS_LOST], ids=lambda kind: kind.title)
def test_a_stream_that_fails_by_itself_is_quarantined(kind: Kind) -> None:
    assert isinstance(decided(kind, POLICY.quarantine_after - 2), ScheduleRetry)
    assert isinstance(decided(kind, POLICY.quarantine_after - 1), Quarantine)
