"""Registering schemas: for topics that are written. Reading is `penstock.registry.client`."""

from __future__ import annotations

from typing import Any

import requests

from penstock.errors.catalogue import PUBLISH_SCHEMA, REGISTRY_ANSWER
from penstock.registry.client import Registered, Registry, content, place, quoted

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
        answer = self._ask("POST", path, body)
        if answer.status_code in (_CONFLICT, _INVALID) and subject:
            raise _refused(subject, place(answer), [_message(answer)])
        return content(answer)


def _body(text: str, kind: str) -> dict[str, str]:
    return {"schema": text, "schemaType": kind}


def _message(answer: requests.Response) -> str:
    try:
        return str(answer.json().get("message") or "")
    except (requests.JSONDecodeError, AttributeError):
        return ""


def _refused(subject: str, url: str, messages: Any) -> Exception:
    said = "; ".join(str(each) for each in messages or () if each)[:300]
    why = f": {said.rstrip('.')}" if said else ""
    return PUBLISH_SCHEMA.error(f"the registry at {url} does not take the new schema of '{subject}'{why}.")
