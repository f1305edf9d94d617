"""Alerts: which changes are worth a message, what it says, and what becomes of one that cannot be sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance
from worlds import NOW, STREAM, healthy, with_actual

from penstock.control.world import Liveness
from penstock.dagster.alerts import ENV, Alert, alerts_of, from_environment, message, webhook
from penstock.dagster.findings import health_findings, restarts_finding
from penstock.dagster.project import Project
from penstock.dagster.sensors import alert_tick, evaluation, given_up_last
from penstock.errors import PenstockError
from penstock.store import StreamState

FAILED = with_actual(healthy(), state=StreamState.FAILED, retry_at=NOW + 5, error_code="PEN-4003", error="boom")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.__dict__["manifest"] = {"nodes": {}, "sources": {}}
    return made


class Hook:
    """A webhook: what it got, and how it answers."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.status = 200
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if hook.status == 200:
                    hook.got.append(json.loads(body))
                self.send_response(hook.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/services/T0/B0/secret-token"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.server.shutdown()
    made.server.server_close()


def _limits(_stream: str) -> Any:
    from penstock.control.health import DEFAULT_LIMITS

    return DEFAULT_LIMITS


def test_what_is_good_at_first_sight_is_no_news_and_what_is_bad_is() -> None:
    assert alerts_of(health_findings(healthy(), _limits), {}, NOW) == []
    found = alerts_of(health_findings(FAILED, _limits), {}, NOW)
    assert [(each.subject, each.state, each.severity, each.before) for each in found] == [
        (STREAM, "failed", "error", None)
    ]


def test_a_message_reads_well_in_slack_and_carries_the_data_beside_it() -> None:
    body = message([Alert(STREAM, "health", "failed", "error", "running", "failed: boom", "See the log.", NOW)])
    assert body["text"] == ":red_circle: *shop.clicks* health: failed: boom See the log."
    assert json.loads(json.dumps(body))["alerts"][0]["before"] == "running"


def test_two_hundred_streams_that_went_down_are_twenty_lines_the_worst_first() -> None:
    late = [Alert(f"a.late{n}", "lag", "catching up", "warn", None, "late", "", NOW) for n in range(50)]
    down = [Alert(f"a.t{n}", "health", "failed", "error", None, "x" * 5_000, "See the log.", NOW) for n in range(150)]
    body = message([*late, *down])
    lines = str(body["text"]).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "… and 180 more"
    assert all(line.startswith(":red_circle: *a.t") for line in lines[:-1])
    assert len(str(body["text"])) < 12_000, "Slack cuts a message at 40,000 characters"
    assert len(body["alerts"]) == 200, "as data, nothing is left out"  # type: ignore[arg-type]


def test_what_slack_would_read_as_a_link_or_a_mention_is_text() -> None:
    body = message([Alert("a<b", "health", "failed", "error", None, "cast(x as array<int>) && <!channel>", "", NOW)])
    assert body["text"] == (":red_circle: *a&lt;b* health: cast(x as array&lt;int&gt;) &amp;&amp; &lt;!channel&gt;")


def test_a_message_that_is_refused_for_ever_does_not_hold_up_the_next_ones(
    project: Project, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    send = webhook(hook.address)
    hook.status = 400
    names = [f"a.t{n}" for n in range(200)]
    first = alert_tick(replace(healthy(*names), engine=Liveness.LOST), None, project, send)
    assert "PEN-5040 The webhook of PENSTOCK_ALERT_WEBHOOK refused 201 alerts" in (first.skip_reason.skip_message or "")
    assert "answered 400" in caplog.text
    assert "secret-token" not in caplog.text
    hook.status = 200
    alert_tick(healthy(*names, at=NOW + 10), first.cursor, project, send)
    assert [len(each["alerts"]) for each in hook.got] == [201], "the recovery gets through"


def test_a_webhook_that_is_asked_too_often_is_asked_again(project: Project, hook: Hook) -> None:
    hook.status = 429
    with pytest.raises(PenstockError, match=r"PEN-5020 .* answered 429"):
        alert_tick(FAILED, None, project, webhook(hook.address))


def test_that_dagster_gave_up_restarting_is_an_alert_and_so_is_the_end_of_it(project: Project, hook: Hook) -> None:
    send, cursor = webhook(hook.address), None
    checks = [["shop.clicks"], ["shop.clicks"], []]
    with DagsterInstance.ephemeral() as instance:
        assert given_up_last(instance) is None
        for second, names in enumerate(checks):
            event = evaluation(restarts_finding(names), {})
            assert event is not None
            instance.report_runless_asset_event(event)
            cursor = alert_tick(healthy(at=NOW + second), cursor, project, send, given_up_last(instance)).cursor
    texts = [each["text"] for each in hook.got]
    assert len(texts) == 2
    assert texts[0].startswith(
        ":red_circle: *supervisor* restarts: gave up restarting shop.clicks: it did not help See"
    )
    assert texts[1] == ":large_green_circle: *supervisor* restarts: nothing was given up"


def test_changes_reach_the_webhook_once_and_so_does_the_recovery(project: Project, hook: Hook) -> None:
    send = webhook(hook.address)
    cursor = None
    for world in (healthy(), FAILED, replace(FAILED, at=NOW + 10), healthy(at=NOW + 20), healthy(at=NOW + 30)):
        world = with_actual(world, lag_at=world.at)
        cursor = alert_tick(world, cursor, project, send).cursor
    texts = [each["text"] for each in hook.got]
    assert len(texts) == 2
    assert texts[0].startswith(":red_circle: *shop.clicks* health: failed, next try in 5 s: PEN-4003 boom")
    assert texts[1] == ":large_green_circle: *shop.clicks* health: runs generation 3"
    assert hook.got[1]["alerts"][0]["before"] == "failed"


def test_a_webhook_that_refuses_is_asked_again_and_its_address_is_never_shown(project: Project, hook: Hook) -> None:
    send = webhook(hook.address)
    hook.status = 503
    with pytest.raises(PenstockError, match=r"PEN-5020 The webhook of PENSTOCK_ALERT_WEBHOOK .* answered 503") as found:
        alert_tick(FAILED, None, project, send)
    assert "secret-token" not in str(found.value)
    hook.status = 200
    alert_tick(replace(FAILED, at=NOW + 10), None, project, send)
    assert len(hook.got) == 1


def test_an_unreachable_webhook_does_not_show_its_address_either() -> None:
    with pytest.raises(PenstockError, match="PEN-5020") as found:
        webhook("http://127.0.0.1:1/secret-token")([Alert(STREAM, "health", "failed", "error", None, "x", "", NOW)])
    assert "secret-token" not in str(found.value)


def test_the_environment_names_the_webhook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV, raising=False)
    assert from_environment() is None
    monkeypatch.setenv(ENV, "http://127.0.0.1:9/x")
    assert from_environment() is not None


def test_everything_that_went_wrong_at_once_is_one_message(project: Project, hook: Hook) -> None:
    names = [f"a.t{n}" for n in range(20)]
    alert_tick(replace(healthy(*names), engine=Liveness.LOST), None, project, webhook(hook.address))
    assert len(hook.got) == 1
    assert len(hook.got[0]["alerts"]) == 21
