"""The client of a schema registry: subjects, versions and schemas by id.

Rules
- Only reading: nothing here registers, changes or deletes a schema.
- A schema comes with all that it refers to, directly and indirectly.
- Connections and overload are tried again for a moment; a refusal is not.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from penstock.errors.catalogue import (
    KEY_UNREADABLE,
    REGISTRY_ANSWER,
    REGISTRY_REFUSED,
    REGISTRY_UNREACHABLE,
    SUBJECT_MISSING,
)
from penstock.kafka.security import Value, resolved

TIMEOUT = 10.0
_TYPE = "application/vnd.schemaregistry.v1+json"
_CREDENTIALS = ("basic.auth.user.info", "bearer.auth.token")


@dataclass(frozen=True)
class Registered:
    """A schema as the registry has it."""

    id: int
    kind: str  # AVRO | PROTOBUF | JSON
    text: str
    files: Mapping[str, str] = field(default_factory=dict)  # what it refers to, what is needed first first
    subject: str | None = None
    version: int | None = None


class Registry:
    """One registry; `url` may be several, with commas, of which the first that answers is asked."""

    def __init__(self, url: str, options: Mapping[str, Value], *, timeout: float = TIMEOUT, retries: int = 2) -> None:
        self.urls = [each.strip().rstrip("/") for each in url.split(",") if each.strip()]
        self._timeout = timeout
        self._session = _session(resolved(options), retries)

    def answers(self) -> bool:
        """Whether it is there, with these credentials or with others."""
        try:
            self._session.get(f"{self.urls[0]}/subjects", timeout=2.0)
        except requests.RequestException:
            return False
        return True

    def check(self) -> None:
        """Nothing when it answers to these credentials; REGISTRY_UNREACHABLE or REGISTRY_REFUSED when not."""
        self._get("/config")

    def latest(self, subject: str) -> Registered:
        return self._version(subject, "latest")

    def version(self, subject: str, number: int) -> Registered:
        return self._version(subject, str(number))

    def versions(self, subject: str) -> list[int]:
        """The numbers of the subject's versions."""
        return sorted(int(number) for number in self._found(subject, f"/subjects/{quoted(subject)}/versions"))

    def by_id(self, schema_id: int) -> Registered | None:
        """The schema of a message; None if the registry does not know the id."""
        answer = self._get(f"/schemas/ids/{schema_id}")
        return None if answer is None else self._registered({**answer, "id": schema_id})

    def _version(self, subject: str, version: str) -> Registered:
        return self._registered(self._found(subject, f"/subjects/{quoted(subject)}/versions/{version}"))

    def _found(self, subject: str, path: str) -> Any:
        answer = self._get(path)
        if answer is None:
            raise SUBJECT_MISSING.error(f"the registry at {self.urls[0]} has no subject '{subject}'.")
        return answer

    def _registered(self, answer: Mapping[str, Any]) -> Registered:
        files: dict[str, str] = {}
        self._collect(answer.get("references") or (), files)
        return Registered(
            id=int(answer["id"]),
            kind=str(answer.get("schemaType") or "AVRO"),
            text=str(answer["schema"]),
            files=files,
            subject=answer.get("subject"),
            version=answer.get("version"),
        )

    def _collect(self, references: Any, files: dict[str, str]) -> None:
        for each in references:
            if each["name"] in files:
                continue
            path = f"/subjects/{quoted(each['subject'])}/versions/{each['version']}"
            found = self._found(str(each["subject"]), path)
            self._collect(found.get("references") or (), files)
            files[str(each["name"])] = str(found["schema"])

    def _get(self, path: str) -> Any:
        """The answer; None when the registry does not know it."""
        return content(self._ask("GET", path))

    def _ask(self, method: str, path: str, body: Mapping[str, str] | None = None) -> requests.Response:
        """What the first that answers says."""
        failure = ""
        for url in self.urls:
            try:
                return self._session.request(method, url + path, json=body, timeout=self._timeout)
            except requests.RequestException as problem:
                failure = reason(problem)
        raise REGISTRY_UNREACHABLE.error(f"The schema registry at {', '.join(self.urls)} does not answer: {failure}.")


def content(answer: requests.Response) -> Any:
    """What an answer holds; None when the registry does not know what was asked for."""
    url = place(answer)
    if answer.status_code == 404:
        return None
    if answer.status_code in (401, 403):
        raise REGISTRY_REFUSED.error(f"The schema registry at {url} answers {answer.status_code}.")
    if answer.status_code in (502, 503, 504):
        raise REGISTRY_UNREACHABLE.error(f"The schema registry at {url} answers {answer.status_code}.")
    try:
        answer.raise_for_status()
        return answer.json()
    except (requests.HTTPError, requests.JSONDecodeError):
        raise REGISTRY_ANSWER.error(
            f"The schema registry at {url} answers {answer.status_code} with what is not of its API."
        ) from None


def place(answer: requests.Response) -> str:
    """Host and port of who answered: the whole address may have more in it than is to be told."""
    found = urlsplit(answer.url)
    return f"{found.scheme}://{found.netloc.rpartition('@')[2]}"


def _session(options: Mapping[str, str], retries: int) -> requests.Session:
    session = requests.Session()
    session.headers["Accept"] = _TYPE
    # A .netrc must not replace what was asked for: requests would put it before a header of ours.
    session.trust_env = options.keys().isdisjoint(_CREDENTIALS)
    if info := options.get("basic.auth.user.info"):
        user, _, password = info.partition(":")
        session.auth = (user, password)
    elif token := options.get("bearer.auth.token"):
        session.headers["Authorization"] = f"Bearer {token}"
    retry = Retry(total=retries, backoff_factor=0.2, status_forcelist=(429, 502, 503, 504), raise_on_status=False)
    session.mount("http://", HTTPAdapter(max_retries=retry))
    session.mount("https://", _Trusting(_context(options), max_retries=retry))
    return session


class _Trusting(HTTPAdapter):
    """Speaks TLS by our certificates; requests itself takes no password for a private key."""

    def __init__(self, context: ssl.SSLContext, **options: Any) -> None:
        self._context = context
        super().__init__(**options)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options, ssl_context=self._context)

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """The context knows whom to trust."""


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ssl.ca.location"))
        if certificate := options.get("ssl.certificate.location"):
            context.load_cert_chain(
                certificate, options.get("ssl.key.location"), lambda: options.get("ssl.key.password", "")
            )
    except (OSError, ssl.SSLError) as problem:
        reason = getattr(problem, "strerror", None) or getattr(problem, "reason", None) or type(problem).__name__
        raise KEY_UNREADABLE.error(
            f"a certificate or key for the schema registry cannot be used: {str(reason).lower()}.",
            hint="Check ssl.ca.location, ssl.certificate.location and ssl.key.location.",
        ) from None
    return context


def quoted(subject: str) -> str:
    return quote(subject, safe="")


def reason(problem: requests.RequestException) -> str:
    """In a few words: the whole text names our objects, and perhaps an address with a password."""
    if isinstance(problem, requests.exceptions.SSLError):
        return _tls_reason(problem)
    if isinstance(problem, requests.Timeout):
        return "no answer in time"
    if isinstance(problem, requests.exceptions.RetryError):
        return "it is overloaded"
    return "no connection"


def _tls_reason(problem: BaseException) -> str:
    """What is the matter with TLS; the cause is deep within what requests raises."""
    below: BaseException | None = problem
    while below is not None and not isinstance(below, ssl.SSLError):
        below = _beneath(below)
    if isinstance(below, ssl.SSLCertVerificationError):
        return "its certificate is not trusted"
    # An alert is the server's word, and about what we have shown it or have not. With TLS 1.3 it may come too late to
    # be read: then there is but the end of the connection.
    alert = str(getattr(below, "reason", None) or "")
    if isinstance(below, ssl.SSLEOFError) or "CERTIFICATE_REQUIRED" in alert or "HANDSHAKE_FAILURE" in alert:
        return "it ends the encrypted connection, as if it wanted a client certificate (ssl.certificate.location)"
    if "ALERT" in alert and ("CERTIFICATE" in alert or alert.endswith("_CA")):
        return "it does not accept the client certificate"
    return "no encrypted connection"


def _beneath(problem: BaseException) -> BaseException | None:
    """requests and urllib3 carry a cause as an argument, urllib3 also as a `reason`."""
    inner = (getattr(problem, "reason", None), *problem.args, problem.__cause__, problem.__context__)
    return next((each for each in inner if isinstance(each, BaseException)), None)
