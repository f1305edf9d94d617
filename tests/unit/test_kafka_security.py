"""Credentials: the names people know, for two clients; secrets by reference alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from source_files import FILE, entries, read_all, table

from penstock.compiler import compile_model, render_job, write_target
from penstock.compiler.spec import KafkaInput
from penstock.control.deploy import check_inputs
from penstock.errors import PenstockError
from penstock.kafka.admin import client_config
from penstock.kafka.security import NAMES, Reference, effective, is_secret, java_options, located
from penstock.paths import ProjectPaths
from penstock.project.profile import load_profile, read_settings, save_settings
from penstock.project.settings import SecuritySettings, names_of
from penstock.store import Store

SECRET = "s3cr3t-that-must-not-be-seen"
SCRAM = (
    "{topic: t, security.protocol: SASL_SSL, sasl.mechanisms: SCRAM-SHA-512, sasl.username: u, "
    "sasl.password: {env_var: KAFKA_PASSWORD}, ssl.ca.location: ca.pem}"
)
PEM = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n"


def test_the_settings_are_the_names_that_the_clients_translate() -> None:
    assert set(names_of(SecuritySettings)) == set(NAMES)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password", "kafka.sasl.password", "ssl.key.password", "kafka.sasl.jaas.config",
        "kafka.ssl.keystore.password", "kafka.ssl.keystore.key", "kafka.sasl.oauthbearer.client.secret",
        "basic.auth.user.info",
    ],
)  # fmt: skip
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["sasl.username", "kafka.ssl.keystore.location", "kafka.max.poll.records", "topic"])
def test_other_names_are_no_secrets(name: str) -> None:
    assert not is_secret(name)


# -- in YAML ----------------------------------------------------------------------------------------------------------
def test_credentials_are_options_and_a_secret_stays_a_reference(tmp_path: Path) -> None:
    source = read_all(table(SCRAM), tmp_path)[0]
    assert source.options == (
        ("kafka.sasl.mechanisms", "SCRAM-SHA-512"),
        ("kafka.sasl.password", Reference(env_var="KAFKA_PASSWORD")),
        ("kafka.sasl.username", "u"),
        ("kafka.security.protocol", "SASL_SSL"),
        ("kafka.ssl.ca.location", "ca.pem"),
    )


def test_the_prefix_makes_no_difference(tmp_path: Path) -> None:
    plain, prefixed = (
        read_all(table(text), tmp_path)[0].options
        for text in (SCRAM, SCRAM.replace("sasl.", "kafka.sasl.").replace("ssl.ca", "kafka.ssl.ca"))
    )
    assert plain == prefixed


def test_empty_credentials_are_none(tmp_path: Path) -> None:
    """As in a template: sasl.username '', sasl.password '', sasl.mechanisms '', security.protocol ''."""
    empty = ", ".join(f"{name}: ''" for name in NAMES)
    assert read_all(table(f"{{topic: t, {empty}}}"), tmp_path)[0].options == ()


def changed(old: str, new: str) -> str:
    assert old in SCRAM
    return SCRAM.replace(old, new)


MISTAKES = [
    pytest.param(changed("{env_var: KAFKA_PASSWORD}", SECRET), "1218", "{env_var: NAME}", id="password"),
    pytest.param(changed("sasl.password: {env_var: KAFKA_PASSWORD}", f"kafka.sasl.password: {SECRET}"), "1218",
                 "secret", id="password with the prefix"),
    pytest.param(changed("ssl.ca.location: ca.pem", f"ssl.key.password: {SECRET}"), "1218", "ssl.key.password",
                 id="password of a key"),
    pytest.param(f"{{topic: t, kafka.sasl.jaas.config: 'x password={SECRET}'}}", "1218", "kafka.sasl.jaas.config",
                 id="jaas"),
    pytest.param(f"{{topic: t, kafka.ssl.keystore.password: {SECRET}}}", "1218", "keystore", id="keystore"),
    pytest.param(changed("{env_var: KAFKA_PASSWORD}", "{env_vra: X}"), "1201", "Did you mean 'env_var'?",
                 id="misspelt reference"),
    pytest.param(changed("{env_var: KAFKA_PASSWORD}", "{env_var: X, file: y}"), "1202", "either", id="two places"),
    pytest.param(changed("{env_var: KAFKA_PASSWORD}", f"[{SECRET}]"), "1202", "a mapping", id="a list"),
    pytest.param(changed("SCRAM-SHA-512", "SCRAM-SHA-521"), "1202", "Did you mean 'SCRAM-SHA-512'?", id="mechanism"),
    pytest.param(changed("SASL_SSL", "SASL_TLS"), "1202", "Did you mean 'SASL_SSL'?", id="protocol"),
    pytest.param(changed("sasl.username", "sasl.user"), "1201", "Did you mean 'sasl.username'?", id="misspelt name"),
    pytest.param(changed("security.protocol: SASL_SSL, ", ""), "1219", "is PLAINTEXT", id="no protocol"),
    pytest.param(changed("SASL_SSL", "SASL_PLAINTEXT"), "1219", "ssl.ca.location", id="a certificate without TLS"),
    pytest.param(changed("SASL_SSL", "SSL"), "1219", "sasl.mechanisms", id="a login without SASL"),
    pytest.param(changed("sasl.mechanisms: SCRAM-SHA-512, ", ""), "1219", "sasl.mechanisms", id="no mechanism"),
    pytest.param(changed("sasl.username: u, ", ""), "1219", "sasl.username", id="no user"),
    pytest.param(changed("topic: t", "topic: t, sasl.mechanism: PLAIN"), "1219", "differ", id="two mechanisms"),
    pytest.param(changed("topic: t", "topic: t, ssl.key.location: k"), "1219", "ssl.certificate.location",
                 id="a key without certificate"),
    pytest.param(changed("topic: t", "topic: t, kafka.sasl.username: v"), "1202", "twice", id="twice"),
]  # fmt: skip


@pytest.mark.parametrize(("stream", "code", "said"), MISTAKES)
def test_a_mistake_has_its_code_and_line_and_no_secret(stream: str, code: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(PenstockError) as caught:
        read_all(table(stream), tmp_path)
    assert (caught.value.code, str(caught.value.at)) == (f"PEN-{code}", f"{FILE}:5")
    assert said in str(caught.value)
    assert SECRET not in f"{caught.value}{caught.value.as_dict()}{caught.value.__cause__}"


# -- for the clients --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "scram.ScramLoginModule"),
    ],
)
def test_a_login_becomes_a_jaas_config_for_java(mechanism: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", 'a"b\\c')
    made = java_options({
        "kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanisms": mechanism, "kafka.sasl.username": "u",
        "kafka.sasl.password": Reference(env_var="PW"), "kafka.max.poll.records": "5",
    })  # fmt: skip
    login = f'org.apache.kafka.common.security.{module} required username="u" password="a\\"b\\\\c";'
    assert made == {
        "kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": mechanism, "kafka.sasl.jaas.config": login,
        "kafka.max.poll.records": "5",
    }  # fmt: skip


def test_certificates_and_keys_are_given_to_java_as_pem(tmp_path: Path) -> None:
    for name, text in (("ca", PEM), ("crt", PEM), ("key", KEY), ("pw", "hidden\n")):
        (tmp_path / name).write_text(text)
    options = located(
        {
            "kafka.security.protocol": "SSL", "kafka.ssl.ca.location": "ca", "kafka.ssl.certificate.location": "crt",
            "kafka.ssl.key.location": "key", "kafka.ssl.key.password": Reference(file="pw"),
            "kafka.ssl.endpoint.identification.algorithm": "none",
        },
        tmp_path,
    )  # fmt: skip
    assert java_options(options) == {
        "kafka.security.protocol": "SSL", "kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.certificates": PEM,
        "kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.certificate.chain": PEM, "kafka.ssl.keystore.key": KEY,
        "kafka.ssl.key.password": "hidden", "kafka.ssl.endpoint.identification.algorithm": "",
    }  # fmt: skip
    config = client_config("b:1", options)
    assert (config["ssl.key.location"], config["ssl.key.password"]) == (str(tmp_path / "key"), "hidden")
    assert config["ssl.endpoint.identification.algorithm"] == "none"


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        (Reference(env_var="NOT_SET_ANYWHERE"), "PEN-2005", "NOT_SET_ANYWHERE"),
        (Reference(file="/no/such/file"), "PEN-2005", "/no/such/file"),
        (Reference(file=os.devnull), "PEN-2005", "empty"),
    ],
)
def test_a_secret_that_is_not_there_is_an_error_of_its_own(where: Reference, code: str, said: str) -> None:
    for client in (java_options, lambda options: client_config("b:1", options)):
        with pytest.raises(PenstockError) as caught:
            client({"kafka.sasl.password": where})
        assert caught.value.code == code
        assert said in str(caught.value)


@pytest.mark.parametrize("text", ["", "-----BEGIN RSA PRIVATE KEY-----\n", "hello"])
def test_a_key_that_java_cannot_read_is_an_error_that_says_how_to_convert_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "crt").write_text(PEM)
    (tmp_path / "key").write_text(text)
    with pytest.raises(PenstockError) as caught:
        java_options({"ssl.certificate.location": str(tmp_path / "crt"), "ssl.key.location": str(tmp_path / "key")})
    assert caught.value.code == "PEN-2006"
    assert "pkcs8" in str(caught.value)


def test_the_profiles_credentials_go_to_its_own_broker_only(tmp_path: Path) -> None:
    profile = {"kafka.security.protocol": "SSL", "kafka.client.id": "p"}
    own = {"kafka.max.poll.records": "5"}
    assert effective(own, profile, own_broker=False, base=tmp_path) == profile | own
    assert effective(own, profile, own_broker=True, base=tmp_path) == own


def test_own_credentials_replace_the_profiles_as_a_whole(tmp_path: Path) -> None:
    profile = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.username": "p", "kafka.client.id": "p"}
    own = {"kafka.security.protocol": "SSL"}
    assert effective(own, profile, own_broker=False, base=tmp_path) == own | {"kafka.client.id": "p"}


# -- nowhere to be seen -----------------------------------------------------------------------------------------------
PROFILES = """
shop:
  target: dev
  outputs:
    dev:
      type: penstock
      schema: shop
      kafka:
        bootstrap.servers: 127.0.0.1:1
        security.protocol: SASL_PLAINTEXT
        sasl.mechanisms: PLAIN
        sasl.username: u
        sasl.password: {env_var: KAFKA_PASSWORD}
        kafka.ssl.keystore.password: {file: secret.txt}
"""


def project(tmp_path: Path, profiles: str = PROFILES) -> Path:
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    (tmp_path / "profiles.yml").write_text(profiles)
    (tmp_path / "secret.txt").write_text(SECRET)
    return tmp_path


def test_a_profile_takes_the_same_credentials_as_references(tmp_path: Path) -> None:
    text = PROFILES.replace("SASL_PLAINTEXT", "SASL_SSL")
    options = load_profile(project(tmp_path, text)).kafka.options
    assert options["kafka.sasl.password"] == Reference(env_var="KAFKA_PASSWORD")
    assert options["kafka.ssl.keystore.password"] == Reference(file="secret.txt")


@pytest.mark.parametrize("written", [SECRET, "\"{{ env_var('KAFKA_PASSWORD') }}\""])
def test_a_secret_in_a_profile_is_refused_with_its_line(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    with pytest.raises(PenstockError) as caught:
        load_profile(project(tmp_path, PROFILES.replace("{env_var: KAFKA_PASSWORD}", written)))
    assert (caught.value.code, str(caught.value.at)) == ("PEN-1218", "profiles.yml:13")
    assert SECRET not in str(caught.value)


def test_no_file_of_a_project_has_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    base = project(tmp_path, PROFILES.replace("SASL_PLAINTEXT", "SASL_SSL"))
    paths = ProjectPaths(base)
    save_settings(paths, load_profile(base))
    source = entries(table(SCRAM.replace("topic: t", "topic: t, bootstrap.servers: '127.0.0.1:1'")), base)[0]
    model = {
        "unique_id": "model.shop.m", "resource_type": "model", "name": "m", "alias": "m", "schema": "shop",
        "original_file_path": "models/m.sql", "raw_code": "select a from shop.clicks",
        "compiled_code": "select a from shop.clicks", "config": {"materialized": "dynamic_table"},
        "depends_on": {"nodes": [source["unique_id"]]},
    }  # fmt: skip
    manifest = {"nodes": {"model.shop.m": model}, "sources": {source["unique_id"]: source}}
    (base / "manifest.json").write_text(json.dumps(manifest))
    (base / "ca.pem").write_text(PEM)
    spec = compile_model(manifest, "model.shop.m", project_dir=base)
    write_target(spec, base / "target")
    store = Store.open(paths.store)
    store.deploy(spec.name, spec.to_json(), spec.hash, verdict="NEW", new_checkpoint=True)
    store.close()
    with pytest.raises(PenstockError) as caught:
        check_inputs(spec, paths)  # nobody listens there
    item = spec.inputs[0]
    assert isinstance(item, KafkaInput)
    options = effective(dict(item.options), read_settings(paths).kafka.options, own_broker=True, base=base)
    assert SECRET in java_options(options)["kafka.sasl.jaas.config"]
    assert SECRET not in f"{caught.value!r} {caught.value} {spec!r} {render_job(spec)} {caplog.text}"
    seen = {path for path in base.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()}
    assert seen == {base / "secret.txt"}
