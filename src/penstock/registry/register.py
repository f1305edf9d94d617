"""Registering schemas: for topics that are written. Reading is `penstock.registry.client`."""

from __future__ import annotations

from typing import Any

import requests

from penstock.errors.catalogue import PUBLISH_SCHEMA, REGISTRY_ANSWER, REGISTRY_REFUSED, REGISTRY_UNREACHABLE
from penstock.registry.client import Registered, Registry, quoted, reason

_CONFLICT, _INVALID = 409, 422


class Registrar(Registry):
    """A registry whose subjects are written to."""

    def newest(self, subject: str) -> Registered | None:
        """The newest version of a subject; None when there is no such subject."""
        answer = self._get(f"/subjects/{quoted(subject)}/versions/latest")
        return None if answer is None else self._registered(answer)

    def check_schema(self, subject: str, text: str, kind: str) -> None:
        """Nothing if the registry would take the schema; PEN-1333 if not."""
        path = f"/compatibility/subjects/{quoted(subject)}/versions/latest?verbose=true"
        answer = self._post(path, _body(text, kind))
        if answer is not None and not answer.get("is_compatible", True):
            raise _refused(subject, self.urls[0], answer.get("messages"))

    def register(self, subject: str, text: str, kind: str) -> int:
        """The id of the schema under the subject; one that is there already keeps its id."""
        answer = self._post(f"/subjects/{quoted(subject)}/versions", _body(text, kind), subject)
        if answer is None:
            raise REGISTRY_ANSWER.error(f"The schema registry at {self.urls[0]} takes no schemas.")
        return int(answer["id"])

    def _post(self, path: str, body: dict[str, str], subject: str = "") -> Any:
        failure = ""
        for url in self.urls:
            try:
                answer = self._session.post(url + path, json=body, timeout=self._timeout)
            except requests.RequestException as problem:
                failure = reason(problem)
                continue
            return _content(answer, url, subject)
        raise REGISTRY_UNREACHABLE.error(f"The schema registry at {', '.join(self.urls)} does not answer: {failure}.")


def _body(text: str, kind: str) -> dict[str, str]:
    return {"schema": text, "schemaType": kind}


def _content(answer: requests.Response, url: str, subject: str) -> Any:
    if answer.status_code == 404:
        return None
    if answer.status_code in (401, 403):
        raise REGISTRY_REFUSED.error(f"The schema registry at {url} answers {answer.status_code}.")
    if answer.status_code in (_CONFLICT, _INVALID) and subject:
        raise _refused(subject, url, [_message(answer)])
    try:
        answer.raise_for_status()
        return answer.json()
    except (requests.HTTPError, requests.JSONDecodeError):
        raise REGISTRY_ANSWER.error(
            f"The schema registry at {url} answers {answer.status_code} with what is not of its API."
        ) from None


def _message(answer: requests.Response) -> str:
    try:
        return str(answer.json().get("message") or "")
    except (requests.JSONDecodeError, AttributeError):
        return ""


def _refused(subject: str, url: str, messages: Any) -> Exception:
    said = "; ".join(str(each) for each in messages or () if each)[:300]
    why = f": {said.rstrip('.')}" if said else ""
    return PUBLISH_SCHEMA.error(f"the registry at {url} does not take the new schema of '{subject}'{why}.")
