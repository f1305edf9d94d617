"""Alerts: changes of state, told to a webhook.

Rules
- An alert is a change for the worse, or back to good. What was good when it was first seen is no news.
- One message carries all changes of one look: twenty lines of text at most, the worst first, and all of them as data.
- A webhook that does not answer is asked again, and nothing is lost or told twice. One that refuses a message (4xx)
  would refuse it for ever: that message is given up, so that the next ones get through.
- The address is a secret (it usually carries a token): it comes from the environment and is never shown.
- The message is what Slack's incoming webhooks take (`text`), with the changes as data beside it for everyone else.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from penstock.dagster.findings import Finding
from penstock.errors.catalogue import ALERT_NOT_SENT, ALERT_REFUSED

ENV = "PENSTOCK_ALERT_WEBHOOK"
TIMEOUT = 5.0
LINES = 20  # of text in one message
_LINE = 500  # characters in one line; causes of failures can be long
_LATER = (408, 425, 429)  # answers that ask for another try
_WORST_FIRST = ("error", "warn", "ok")
_SIGNS = {"ok": ":large_green_circle:", "warn": ":large_yellow_circle:", "error": ":red_circle:"}


@dataclass(frozen=True)
class Alert:
    """One change of state."""

    subject: str  # a stream, or a part of the platform
    check: str  # health | lag | restarts
    state: str
    severity: str  # ok | warn | error
    before: str | None  # the state before; None when it is seen for the first time
    summary: str
    advice: str
    at: float


Send = Callable[[Sequence[Alert]], None]


def alerts_of(findings: Sequence[Finding], before: Mapping[str, str], now: float) -> list[Alert]:
    """The findings that are worth a message; `before` has the last state of each, with its severity."""
    found = []
    for finding in findings:
        old = before.get(finding.key)
        old_state, _, old_severity = (old or "/").partition("/")
        verdict = finding.verdict
        if verdict.severity.value == (old_severity or "ok"):
            continue
        found.append(
            Alert(
                finding.subject, finding.check, verdict.state.value, verdict.severity.value, old_state or None,
                verdict.summary, verdict.advice, now,
            )
        )  # fmt: skip
    return found


def message(alerts: Sequence[Alert]) -> dict[str, object]:
    """The body of the request."""
    ordered = sorted(alerts, key=lambda alert: _WORST_FIRST.index(alert.severity))
    lines = [_line(alert) for alert in ordered[:LINES]]
    if len(ordered) > LINES:
        lines.append(f"… and {len(ordered) - LINES} more")
    return {"text": "\n".join(lines), "alerts": [asdict(alert) for alert in alerts]}


def _line(alert: Alert) -> str:
    said = f"{alert.check}: {alert.summary}"
    if alert.advice and alert.severity != "ok":
        said += f" {alert.advice}"
    short = said if len(said) <= _LINE else said[: _LINE - 1] + "…"
    return f"{_SIGNS[alert.severity]} *{_escaped(alert.subject)}* {_escaped(short)}"


def _escaped(text: str) -> str:
    """In Slack's text, these three begin a link, a mention or an entity."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def webhook(address: str, timeout: float = TIMEOUT) -> Send:
    """Posts alerts to an address; raises PEN-5020 for another try, PEN-5040 when there is no use in one."""

    def send(alerts: Sequence[Alert]) -> None:
        body = json.dumps(message(alerts)).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=timeout):
                return
        except urllib.error.HTTPError as problem:
            cause = f"it answered {problem.code}"
            if 400 <= problem.code < 500 and problem.code not in _LATER:
                raise ALERT_REFUSED.error(
                    f"The webhook of {ENV} refused {len(alerts)} alerts, which are given up: {cause}."
                ) from None
        except (OSError, ValueError) as problem:
            cause = type(problem).__name__  # its text may show the address
        raise ALERT_NOT_SENT.error(f"The webhook of {ENV} did not take an alert: {cause}.")

    return send


def from_environment() -> Send | None:
    """The webhook that the environment names."""
    address = os.environ.get(ENV, "").strip()
    return webhook(address) if address else None
