"""Questions to a schema registry: answers, refusals and silence, against a server that says what the test wants."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
import urllib3

from penstock.errors import PenstockError
from penstock.errors.catalogue import (
    KEY_UNREADABLE,
    PUBLISH_SCHEMA,
    REGISTRY_ANSWER,
    REGISTRY_NOT_CONFIGURED,
    REGISTRY_REFUSED,
    REGISTRY_UNREACHABLE,
    SECRET_MISSING,
    SUBJECT_MISSING,
)
from penstock.kafka.security import Reference
from penstock.paths import ProjectPaths
from penstock.registry.address import access
from penstock.registry.cache import SchemaCache
from penstock.registry.client import Registered, Registry
from penstock.registry.register import Registrar


class Server:
    """Answers by path; remembers what was asked with."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.status = 200
        self.authorization: list[str | None] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.authorization.append(self.headers.get("Authorization"))
                known = self.path in server.answers
                self.send_response(server.status if known or server.status != 200 else 404)
                self.end_headers()
                self.wfile.write(json.dumps(server.answers.get(self.path, {"error_code": 40403})).encode())

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def failure(ask: Any) -> PenstockError:
    with pytest.raises(PenstockError) as found:
        ask()
    return found.value


def test_a_schema_comes_with_all_that_it_refers_to(server: Server) -> None:
    def answer(text: str, *references: str) -> dict[str, Any]:
        return {"id": 7, "subject": "o-value", "version": 3, "schema": text, "schemaType": "PROTOBUF",
                "references": [{"name": each, "subject": each, "version": 1} for each in references]}  # fmt: skip

    server.answers = {
        "/subjects/o%2Fvalue/versions/latest": answer("top", "b.proto", "c.proto"),
        "/subjects/b.proto/versions/1": answer("b", "c.proto"),
        "/subjects/c.proto/versions/1": answer("c"),
    }
    found = Registry(server.url, {}).latest("o/value")
    assert (found.id, found.kind, found.text) == (7, "PROTOBUF", "top")
    assert list(found.files.items()) == [("c.proto", "c"), ("b.proto", "b")]


def test_what_is_not_known_is_told_apart_from_what_does_not_answer(server: Server) -> None:
    registry = Registry(server.url, {})
    assert registry.by_id(99) is None
    assert failure(lambda: registry.latest("gone-value")).kind is SUBJECT_MISSING
    server.status = 401
    assert failure(lambda: registry.by_id(1)).kind is REGISTRY_REFUSED
    server.status = 500
    assert failure(lambda: registry.by_id(1)).kind is REGISTRY_ANSWER
    server.status = 503
    assert failure(lambda: Registry(server.url, {}, retries=0).by_id(1)).kind is REGISTRY_UNREACHABLE
    server.close()
    assert failure(lambda: Registry(server.url, {}, retries=0).by_id(1)).kind is REGISTRY_UNREACHABLE


def test_registering_tells_a_registry_that_is_away_from_one_that_says_no(server: Server) -> None:
    registrar = Registrar(server.url, {}, retries=0)
    server.answers["/subjects/totals-value/versions"] = {"id": 7, "message": "field n was removed"}
    assert registrar.register("totals-value", '"string"', "AVRO") == 7
    for status, kind in (
        (503, REGISTRY_UNREACHABLE),
        (401, REGISTRY_REFUSED),
        (409, PUBLISH_SCHEMA),
        (500, REGISTRY_ANSWER),
    ):
        server.status = status
        found = failure(lambda: registrar.register("totals-value", '"string"', "AVRO"))
        assert found.kind is kind
        assert server.url in found.message
        assert ("field n was removed" in found.message) == (kind is PUBLISH_SCHEMA)


def test_of_several_addresses_the_first_that_answers_is_asked(server: Server) -> None:
    server.answers = {"/schemas/ids/5": {"schema": '"int"'}}
    registry = Registry(f"http://127.0.0.1:1, {server.url}/", {}, retries=0)
    assert registry.by_id(5) == Registered(5, "AVRO", '"int"')


def test_credentials_are_looked_up_when_the_client_is_made(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"basic.auth.user.info": Reference(env_var="REGISTRY_USER")}
    assert failure(lambda: Registry(server.url, options)).kind is SECRET_MISSING
    monkeypatch.setenv("REGISTRY_USER", "ada:pass:word")
    Registry(server.url, options).by_id(1)
    assert server.authorization[-1] == f"Basic {base64.b64encode(b'ada:pass:word').decode()}"
    Registry(server.url, {"bearer.auth.token": Reference(env_var="REGISTRY_USER")}).by_id(1)
    assert server.authorization[-1] == "Bearer ada:pass:word"


@pytest.mark.parametrize(("name", "kind"), [("basic.auth.user.info", "Basic"), ("bearer.auth.token", "Bearer")])
def test_credentials_of_the_machine_do_not_replace_those_that_were_asked_for(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, kind: str
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("REGISTRY_SECRET", "ada:word")
    Registry(server.url, {}).by_id(1)
    assert server.authorization[-1] == f"Basic {base64.b64encode(b'someone:else').decode()}"
    Registry(server.url, {name: Reference(env_var="REGISTRY_SECRET")}).by_id(1)
    expected = {"Basic": base64.b64encode(b"ada:word").decode(), "Bearer": "ada:word"}
    assert server.authorization[-1] == f"{kind} {expected[kind]}"


def _alert(reason: str, kind: type[ssl.SSLError] = ssl.SSLError) -> requests.exceptions.SSLError:
    """As it comes out of requests: wrapped three times."""
    alert = kind(1, reason)
    alert.reason = reason
    pool = urllib3.HTTPSConnectionPool("127.0.0.1")
    return requests.exceptions.SSLError(urllib3.exceptions.MaxRetryError(pool, "/", urllib3.exceptions.SSLError(alert)))


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (_alert("CERTIFICATE_VERIFY_FAILED", ssl.SSLCertVerificationError), "its certificate is not trusted"),
        (_alert("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "wanted a client certificate"),
        (_alert("SSLV3_ALERT_HANDSHAKE_FAILURE"), "wanted a client certificate"),
        (_alert("UNEXPECTED_EOF_WHILE_READING", ssl.SSLEOFError), "wanted a client certificate"),
        (_alert("TLSV1_ALERT_UNKNOWN_CA"), "does not accept the client certificate"),
        (_alert("SSLV3_ALERT_BAD_CERTIFICATE"), "does not accept the client certificate"),
        (_alert("WRONG_VERSION_NUMBER"), "no encrypted connection"),
        (requests.exceptions.SSLError("something else"), "no encrypted connection"),
    ],
)
def test_who_is_not_trusted_by_whom_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, problem: requests.exceptions.SSLError, words: str
) -> None:
    def get(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr(requests.Session, "request", get)
    found = failure(lambda: Registry("https://127.0.0.1:1", {}).by_id(1))
    assert found.kind is REGISTRY_UNREACHABLE
    assert words in found.message


def test_a_certificate_that_is_not_there_is_told(tmp_path: Path) -> None:
    options = {"ssl.ca.location": str(tmp_path / "gone.pem")}
    assert failure(lambda: Registry("https://127.0.0.1:1", options)).kind is KEY_UNREADABLE


# -- which registry ---------------------------------------------------------------------------------------------------
PROFILE = {"url": "http://profile", "basic.auth.user.info": Reference(env_var="PROFILE_USER")}


def test_the_credentials_of_the_profile_never_go_to_another_registry(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    assert access({}, PROFILE, paths).options == {"basic.auth.user.info": Reference(env_var="PROFILE_USER")}
    own = access({"url": "http://own"}, PROFILE, paths)
    assert (own.url, own.options) == ("http://own", {})
    other = access({"bearer.auth.token": Reference(file="token")}, PROFILE, paths)
    assert (other.url, other.options) == (
        "http://profile", {"bearer.auth.token": Reference(file=str(tmp_path / "token"))},
    )  # fmt: skip


def test_without_an_address_the_embedded_registry_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ProjectPaths(tmp_path)
    assert failure(lambda: access({}, {}, paths)).kind is REGISTRY_NOT_CONFIGURED
    (paths.registry / "data").mkdir(parents=True)
    assert failure(lambda: access({}, {}, paths)).kind is REGISTRY_UNREACHABLE
    (paths.registry / "registry.json").write_text(json.dumps({"url": "http://127.0.0.1:5/x"}))
    assert access({}, {}, paths).url == "http://127.0.0.1:5/x"
    monkeypatch.setenv("PENSTOCK_SCHEMA_REGISTRY", "http://elsewhere")
    assert access({}, {}, paths).url == "http://elsewhere"


# -- what is kept -----------------------------------------------------------------------------------------------------
def test_schemas_and_ids_are_kept_for_each_registry(tmp_path: Path) -> None:
    one, two = (SchemaCache(ProjectPaths(tmp_path), name) for name in ("one", "two"))
    schema = Registered(7, "AVRO", '"int"', {"a": "b"}, "s", 2)
    one.keep(schema)
    one.meet("shop.orders.value", {7: True, 8: None})
    one.meet("shop.orders.value", {8: False})
    one.keep_versions("s", {2: 7})
    assert one.find(7) == schema
    assert one.met("shop.orders.value") == {7: True, 8: False}
    assert one.versions("s") == {2: 7}
    assert two.find(7) is None
    assert two.met("shop.orders.value") == two.versions("s") == {}


def test_a_damaged_file_is_as_good_as_none(tmp_path: Path) -> None:
    cache = SchemaCache(ProjectPaths(tmp_path), "one")
    cache.keep(Registered(7, "AVRO", '"int"'))
    cache.meet("s", {7: True})
    for file in (tmp_path / ".penstock").rglob("*.json"):
        file.write_text("{")
    assert cache.find(7) is None
    assert cache.met("s") == {}
