"""The embedded schema registry, and the real one behind TLS and a password."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from certificates import certificates
from commands import warm
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from registry_gateway import Gateway
from schema_messages import avro_serializer, register
from schema_streams import Streams, source

from penstock import processes
from penstock.control.parts import ask_registry, look, registries
from penstock.dev import registry as service
from penstock.dev.registry import RegistryService
from penstock.errors import PenstockError
from penstock.errors.catalogue import (
    KEY_UNREADABLE,
    PORT_TAKEN,
    REGISTRY_REFUSED,
    REGISTRY_START,
    REGISTRY_UNREACHABLE,
)
from penstock.kafka.security import Reference, Value
from penstock.paths import ProjectPaths
from penstock.project.profile import SchemaRegistrySettings
from penstock.registry.client import Registry

ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'


@pytest.fixture
def own(project_paths: ProjectPaths) -> Iterator[ProjectPaths]:
    yield project_paths
    service.stop(project_paths)


def test_one_registry_a_project_and_its_ids_survive_a_kill(own: ProjectPaths) -> None:
    first = service.start(own)
    assert service.start(own) == first == service.status(own)
    assert json.loads((own.registry / "registry.json").read_text())["url"] == first.url
    schema_id = register(SchemaRegistryClient({"url": first.url}), "orders-value", ORDER)
    profile = SchemaRegistrySettings(embedded=True)
    parts = look(registries([], profile, own, ask_registry))
    assert [(part.kind, part.name, part.ok) for part in parts] == [("registry", first.url, True)]
    os.kill(first.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(first.pid)] if psutil.pid_exists(first.pid) else [], timeout=10)
    gone = look(registries([], profile, own, ask_registry))
    assert [(part.kind, part.ok) for part in gone] == [("registry", False)]

    again = service.start(own)
    assert again.pid != first.pid
    assert again.port == first.port, "an address that was written down goes on working"
    found = Registry(again.url, {}).latest("orders-value")
    assert (found.id, json.loads(found.text)["name"]) == (schema_id, "Order")

    with pytest.raises(PenstockError) as taken:
        service.start(ProjectPaths(own.project / "other"), port=again.port)
    assert taken.value.kind is PORT_TAKEN
    assert service.stop(own)
    assert not processes.alive(again.pid, again.started_at)
    assert service.status(own) is None
    assert not service.stop(own)


def test_a_registry_that_ends_at_once_is_told(own: ProjectPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = own.project / "program"
    broken.mkdir()
    (broken / "x-runner.jar").write_text("no jar")
    monkeypatch.setattr(service, "unpacked", lambda *_: broken)
    with pytest.raises(PenstockError) as found:
        service.start(own)
    assert found.value.kind is REGISTRY_START


def test_a_registry_is_asked_with_tls_and_a_password(
    registry: RegistryService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema_id = register(SchemaRegistryClient({"url": registry.url}), "secured-value", ORDER)
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=registry",
               "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "ca.pem"]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "ca.pem", tmp_path / "key.pem")
    gateway = Gateway(registry.url, user_info="reader:s3cret", tls=tls)
    monkeypatch.setenv("REGISTRY_USER", "reader:s3cret")
    trusted = {"ssl.ca.location": str(tmp_path / "ca.pem")}
    user = {"basic.auth.user.info": Reference(env_var="REGISTRY_USER")}
    try:
        assert Registry(gateway.url, trusted | user).latest("secured-value").id == schema_id
        with pytest.raises(PenstockError) as untrusted:
            Registry(gateway.url, user, retries=0).latest("secured-value")
        assert untrusted.value.kind is REGISTRY_UNREACHABLE
        assert "certificate" in untrusted.value.message
        with pytest.raises(PenstockError) as refused:
            Registry(gateway.url, trusted).latest("secured-value")
        assert refused.value.kind is REGISTRY_REFUSED
        assert "s3cret" not in str(refused.value)
    finally:
        gateway.close()


TOKEN, KEY_PASSWORD = "token-of-the-registry", "password-of-the-key"
ORDERS = ORDER, ORDER.replace("]}", ', {"name": "note", "type": "string", "default": ""}]}')


@pytest.mark.timeout(600)
def test_a_stream_decodes_by_a_registry_that_wants_a_certificate_and_a_token(
    streams: Streams,
    client: SchemaRegistryClient,
    registry: RegistryService,
    topic: Callable[..., str],
    produce: Callable[..., int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    files = tmp_path_factory.mktemp("registry-certificates")
    certificates(files, server="registry", key_password=KEY_PASSWORD)
    for name, secret in (("token", TOKEN), ("wrong", "no-such-token")):
        (files / name).write_text(secret)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files / "registry.pem", files / "registry.plain")
    tls.load_verify_locations(files / "ca.pem")
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.maximum_version = ssl.TLSVersion.TLSv1_2  # the refusal is part of the handshake: it always comes to be read
    gateway = Gateway(registry.url, token=TOKEN, tls=tls)
    own: dict[str, Value] = {
        "bearer.auth.token": Reference(file=str(files / "token")),
        "ssl.ca.location": str(files / "ca.pem"),
        "ssl.certificate.location": str(files / "client.pem"),
        "ssl.key.location": str(files / "client.key"),
        "ssl.key.password": Reference(file=str(files / "key-password")),
    }
    try:
        _refusals(gateway.url, own, files)
        name = topic(name="secured")
        one, two = (avro_serializer(client, name, each) for each in ORDERS)
        produce(name, [one({"id": 1})])
        written = {f"schema.registry.{key}": json.dumps(each if isinstance(each, str) else each.plain())
                   for key, each in own.items()}  # fmt: skip
        text = source(name, "{format: avro}", **{"schema.registry.url": gateway.url, **written})
        stream = streams.deploy(text, "select id from shop.events")
        assert streams.rows(stream, 1) == [(1,)]
        produce(name, [two({"id": 2, "note": "n"})])  # the engine asks for a new id
        assert streams.rows(stream, 2) == [(1,), (2,)]
        told = _described(streams.project, streams.platform.bootstrap)
        (schema,) = told["schemas"]
        ids = [client.lookup_schema(f"{name}-value", Schema(each, "AVRO")).schema_id for each in ORDERS]
        assert (schema["subject"], schema["version"], schema["id"]) == (f"{name}-value", 1, ids[0])
        assert schema["in_registry"] == [{"version": number, "id": each} for number, each in enumerate(ids, 1)]
        assert told["schema_registry"] == gateway.url
    finally:
        gateway.close()
    secrets = [each.encode() for each in (TOKEN, KEY_PASSWORD, "no-such-token", "PRIVATE KEY-----")]
    places = [*streams.platform.paths.project.rglob("*"), *streams.project.rglob("*")]
    looked_at = {"store.db", "job.py", "logs", "metastore", "warehouse", "manifest.json", "penstock.lock"}
    assert looked_at <= {each.name for each in places}
    assert [each for each in places if any(secret in _content(each) for secret in secrets)] == []


def _content(file: Path) -> bytes:
    """What is in a file; streams run, and may have removed it by now."""
    try:
        return file.read_bytes() if file.is_file() else b""
    except FileNotFoundError:
        return b""


def _refusals(url: str, own: dict[str, Value], files: Path) -> None:
    """What is told of a wrong token, a wrong password of the key, and no certificate."""
    nobody = {name: value for name, value in own.items() if name in ("bearer.auth.token", "ssl.ca.location")}
    for options, kind, words in (
        (own | {"bearer.auth.token": Reference(file=str(files / "wrong"))}, REGISTRY_REFUSED, "401"),
        (own | {"ssl.key.password": Reference(file=str(files / "wrong"))}, KEY_UNREADABLE, "key"),
        (nobody, REGISTRY_UNREACHABLE, "wanted a client certificate"),
    ):
        with pytest.raises(PenstockError) as found:
            Registry(url, options, retries=0).check()
        assert found.value.kind is kind
        assert words in found.value.message
        assert "no-such-token" not in str(found.value)


def _described(project: Path, bootstrap: str) -> dict[str, Any]:
    """What `penstock describe` says, after `penstock compile`: both leave files in `target`."""
    (project / "dbt_project.yml").write_text(
        "name: shop\nprofile: shop\nmodel-paths: [sources, models]\nflags: {send_anonymous_usage_stats: false}\n"
    )
    target = f"{{type: penstock, schema: shop, kafka: {{bootstrap.servers: '{bootstrap}'}}}}"
    (project / "profiles.yml").write_text(f"shop: {{target: dev, outputs: {{dev: {target}}}}}\n")
    (project / "models").mkdir()
    model = "{{ config(materialized='dynamic_table') }} select id from {{ source('shop', 'events') }}"
    (project / "models" / "of_events.sql").write_text(model)
    (project / ".penstock" / "registry" / "registry.json").unlink()  # nobody but the gateway may answer
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DBT_", "PENSTOCK_"))}
    for command in (["compile"], ["describe", "shop.events", "--output", "json"]):
        done = subprocess.run(
            [warm("penstock"), *command], cwd=project, env=environment, capture_output=True,
            text=True, timeout=180, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert not any(secret in done.stdout + done.stderr for secret in (TOKEN, KEY_PASSWORD))
    found: dict[str, Any] = json.loads(done.stdout)
    return found
