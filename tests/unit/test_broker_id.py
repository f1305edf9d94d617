"""The id of an embedded broker's cluster."""

from __future__ import annotations

import uuid

import pytest

from penstock.dev.broker import new_cluster_id


def test_a_cluster_id_is_never_read_as_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter([uuid.UUID(bytes=b"\xf8" + bytes(15)), uuid.UUID(bytes=b"\x00" + bytes(15))])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(ids))
    assert new_cluster_id() == "A" * 22
