"""Credentials against a real broker with SASL and TLS listeners, with certificates of the test's own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from certificates import certificates
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from source_files import column, compiled, entries, table

from penstock.compiler import compile_source
from penstock.compiler.topic_view import records_table
from penstock.control.deploy import check_inputs
from penstock.control.sources import drop_source, register
from penstock.dev import broker as broker_service
from penstock.errors import PenstockError
from penstock.kafka.admin import client_config, create_topics
from penstock.kafka.security import effective
from penstock.kafka.topic_watch import TopicWatch
from penstock.paths import ProjectPaths
from penstock.project.profile import RuntimeSettings, save_settings

pytestmark = [pytest.mark.timeout(600), pytest.mark.deep]
PASSWORD = 'pa"ss\\word with signs'
KEY_PASSWORD = "key-pass-1"
JAAS = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Secured:
    """A broker with a topic `secret` of three messages, behind four doors."""

    plain: str
    sasl: str
    tls: str
    sasl_tls: str
    files: Path


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def properties(files: Path, sasl: int, tls: int, sasl_tls: int) -> dict[str, str]:
    doors = f"SASL_PLAINTEXT://127.0.0.1:{sasl},SSL://127.0.0.1:{tls},SASL_SSL://127.0.0.1:{sasl_tls}"
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
    found = {
        "listeners": doors,
        "advertised.listeners": doors,
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files / "store.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
    }
    for door in ("sasl_plaintext", "sasl_ssl"):
        above = f"listener.name.{door}"
        found[f"{above}.plain.sasl.jaas.config"] = f'{JAAS}.plain.PlainLoginModule required user_reader="{quoted}";'
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            found[f"{above}.{mechanism}.sasl.jaas.config"] = f"{JAAS}.scram.ScramLoginModule required;"
    return found


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    files = tmp_path_factory.mktemp("certificates")
    certificates(files, server="broker", key_password=KEY_PASSWORD)
    (files / "store.pem").write_text((files / "broker.plain").read_text() + (files / "broker.pem").read_text())
    (files / "password").write_text(PASSWORD + "\n")
    paths = ProjectPaths(tmp_path_factory.mktemp("secured"))
    ports = free_ports(3)
    try:
        started = broker_service.start(paths, timeout=180, more=properties(files, *ports))
        admin = AdminClient(client_config(started.bootstrap))
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            change = UserScramCredentialUpsertion("reader", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for future in admin.alter_user_scram_credentials([change]).values():
                future.result(timeout=30)
        create_topics(started.bootstrap, {"secret": 1})
        producer = Producer(client_config(started.bootstrap))
        for number in range(3):
            producer.produce("secret", f"line {number}".encode())
        assert producer.flush(30) == 0
        yield Secured(started.bootstrap, *(f"127.0.0.1:{port}" for port in ports), files)
    finally:
        broker_service.stop(paths)


WAYS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "SASL_SSL", "mTLS"]


def settings(secured: Secured, way: str) -> str:
    """The settings of a source by that way; every secret is in a file."""
    files = secured.files
    login = f"sasl.username: reader, sasl.password: {{file: {files / 'password'}}}"
    authority = f"ssl.ca.location: {files / 'ca.pem'}"
    if way == "mTLS":
        return (
            f"{{topic: secret, value: {{format: string}}, bootstrap.servers: '{secured.tls}', security.protocol: SSL, "
            f"{authority}, ssl.certificate.location: {files / 'client.pem'}, ssl.key.location: {files / 'client.key'}, "
            f"ssl.key.password: {{file: {files / 'key-password'}}}}}"
        )
    if way == "SASL_SSL":
        return (
            f"{{topic: secret, value: {{format: string}}, bootstrap.servers: '{secured.sasl_tls}', "
            f"security.protocol: SASL_SSL, sasl.mechanism: SCRAM-SHA-512, {login}, {authority}}}"
        )
    return (
        f"{{topic: secret, value: {{format: string}}, bootstrap.servers: '{secured.sasl}', "
        f"security.protocol: SASL_PLAINTEXT, sasl.mechanisms: {way}, {login}}}"
    )


@pytest.mark.parametrize("way", WAYS)
def test_the_deploy_check_and_the_lag_log_in(way: str, secured: Secured, tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    save_settings(paths, RuntimeSettings(target="dev", schema="shop"))
    spec = compiled(table(settings(secured, way), column("line", "string")), tmp_path)
    check_inputs(spec, paths)
    item: Any = spec.inputs[0]
    options = tuple(sorted(effective(dict(item.options), {}, own_broker=True, base=tmp_path).items()))
    watch = TopicWatch()
    try:
        assert watch.watermarks(item.bootstrap, "secret", options) == ({0: 0}, {0: 3})
    finally:
        watch.close()


def test_a_wrong_password_is_refused_and_not_shown(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("not-the-password")
    save_settings(ProjectPaths(tmp_path), RuntimeSettings(target="dev", schema="shop"))
    stream = settings(secured, "PLAIN").replace(str(secured.files / "password"), "wrong")
    with pytest.raises(PenstockError) as caught:
        check_inputs(compiled(table(stream, column("line", "string")), tmp_path), ProjectPaths(tmp_path))
    assert caught.value.code == "PEN-2008"
    assert "not-the-password" not in f"{caught.value!r}{caught.value}"


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_reads_by_every_way_and_the_secret_is_nowhere(
    way: str, secured: Secured, platform: Any, schema: str, tmp_path: Path
) -> None:
    name = f"{schema}.{way.replace('-', '_').lower()}"
    platform.deploy(compiled(table(settings(secured, way), column("line", "string")), tmp_path, name=name))
    look: Callable[[], Any] = lambda: platform.sql(f"select count(*) from {name}") == [(3,)]  # noqa: E731
    platform.until(look, "three rows", 120, lambda: platform.store.actual(name))
    # The part of the password without quotes: it is the same in Java's escaped form.
    secrets = (b"word with signs", KEY_PASSWORD.encode(), b"PRIVATE KEY-----")
    seen = [path for path in platform.paths.home.rglob("*") if path.is_file()
            and any(secret in path.read_bytes() for secret in secrets)]  # fmt: skip
    assert seen == []


@pytest.mark.parametrize("way", ["PLAIN", "SASL_SSL", "mTLS"])
def test_a_view_reads_by_every_way_and_the_catalog_holds_references_only(
    way: str, secured: Secured, platform: Any, schema: str, tmp_path: Path
) -> None:
    entry = entries(table(settings(secured, way), column("line", "string")), tmp_path)[0]
    source = compile_source(entry | {"schema": f"{schema}_src"}, project_dir=tmp_path)
    register(platform.store, source)
    try:
        rows = platform.sql(f"select line from {source.relation} order by _offset limit 2")
        assert rows == [("line 0",), ("line 1",)]
        records = records_table(source.relation)
        shown = [platform.sql(f"{words} {name}") for words in ("describe extended", "show create table",
                 "show tblproperties") for name in (source.relation, records)]  # fmt: skip
        catalog = f"{shown}{platform.sql(f'explain extended select * from {source.relation}')}"
        secrets = (
            "word with signs",
            KEY_PASSWORD,
            "PRIVATE KEY",
            "reader",
            secured.sasl,
            secured.sasl_tls,
            secured.tls,
        )
        assert [secret for secret in secrets if secret in catalog] == []
        stored = [path for path in platform.paths.home.rglob("*") if path.is_file() and not path.is_symlink()
                  and any(secret.encode() in path.read_bytes() for secret in secrets[:3])]  # fmt: skip
        assert stored == []
    finally:
        drop_source(platform.store, source.relation)
