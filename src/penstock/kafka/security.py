"""Credentials and encryption for Kafka, by the names that people know from its clients.

Rules
- A secret is written as a reference to a variable or a file, never as text. References travel through manifest, spec,
  job and store; `resolved` turns them into text at the moment a client is made, and nobody keeps or logs that.
- Two clients are served from one set of options: Spark's, which is Java (`java_options`), and librdkafka
  (`penstock.kafka.admin.client_config`).
- Certificates and keys are files in PEM. Relative paths are relative to the project.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from penstock.errors.catalogue import KEY_UNREADABLE, SECRET_MISSING

PREFIX = "kafka."
NAMES = (
    "security.protocol", "sasl.mechanisms", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.location",
    "ssl.certificate.location", "ssl.key.location", "ssl.key.password", "ssl.endpoint.identification.algorithm",
)  # fmt: skip
_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
_SECRET = re.compile(
    r"(password|secret|token|jaas\.config|user\.info|keystore\.key|key\.pem|credentials?)$", re.IGNORECASE
)
_PKCS8 = re.compile(r"-----BEGIN (?:ENCRYPTED )?PRIVATE KEY-----")
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
MECHANISMS = tuple(_LOGIN)
PROTOCOLS = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL")


class Reference(BaseModel):
    """Where a secret is kept: one of the two."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    env_var: str | None = Field(
        default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="Name of an environment variable."
    )
    file: str | None = Field(default=None, min_length=1, description="Path of a file that holds the secret alone.")

    @model_validator(mode="after")
    def _one(self) -> Reference:
        if (self.env_var is None) == (self.file is None):
            raise PydanticCustomError("PEN-1202", "a reference has either 'env_var' or 'file'.")
        return self

    def __str__(self) -> str:
        return f"{{env_var: {self.env_var}}}" if self.env_var is not None else f"{{file: {self.file}}}"

    @model_serializer
    def plain(self) -> dict[str, str]:
        """As it is written in YAML, in a spec and in a job."""
        return {"env_var": self.env_var} if self.env_var is not None else {"file": str(self.file)}


Value = str | Reference


def is_secret(name: str) -> bool:
    """Whether an option, with or without the prefix, holds a secret."""
    return _SECRET.search(name) is not None


def is_security(name: str) -> bool:
    """Whether an option concerns authentication or encryption."""
    return name.removeprefix(PREFIX).startswith(("security.", "sasl.", "ssl."))


def located(options: Mapping[str, Value], base: Path) -> dict[str, Value]:
    """The same options with paths that do not depend on the directory a process runs in."""
    found: dict[str, Value] = {}
    for name, value in options.items():
        if isinstance(value, Reference):
            found[name] = value if value.file is None else Reference(file=_absolute(value.file, base))
        elif name.removeprefix(PREFIX) in _FILES:
            found[name] = _absolute(value, base)
        else:
            found[name] = value
    return found


def resolved(options: Mapping[str, Value]) -> dict[str, str]:
    """The options without their prefix and with the secrets themselves: for a client, and for nothing else."""
    return {
        name.removeprefix(PREFIX): value if isinstance(value, str) else _secret(name.removeprefix(PREFIX), value)
        for name, value in options.items()
    }


def java_options(options: Mapping[str, Value], opened: Callable[[str, str], str] | None = None) -> dict[str, str]:
    """The options of Spark's Kafka source, with the prefix; `opened` takes the password off a private key."""
    plain = resolved(options)
    made: dict[str, str] = {}
    mechanism = plain.pop("sasl.mechanism", None) or plain.pop("sasl.mechanisms", None)
    plain.pop("sasl.mechanisms", None)
    username, password = plain.pop("sasl.username", None), plain.pop("sasl.password", None)
    if mechanism:
        made["sasl.mechanism"] = mechanism
    if username is not None and password is not None and mechanism in _LOGIN:
        login = f"username={_jaas(username)} password={_jaas(password)}"
        made["sasl.jaas.config"] = f"{_LOGIN[mechanism]} required {login};"
    authority, chain, key = (plain.pop(name, None) for name in _FILES)
    if authority:
        made |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _pem("ssl.ca.location", authority)}
    if chain and key:
        made |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _pem("ssl.certificate.location", chain),
            "ssl.keystore.key": _pkcs8(key),
        }
        if opened is not None and "ssl.key.password" in plain:
            made["ssl.keystore.key"] = opened(made["ssl.keystore.key"], plain.pop("ssl.key.password"))
    if plain.get("ssl.endpoint.identification.algorithm") == "none":
        plain["ssl.endpoint.identification.algorithm"] = ""  # what librdkafka calls none
    return {f"{PREFIX}{name}": value for name, value in (made | plain).items()}


def values_of(options: Mapping[str, str | Mapping[str, str]]) -> dict[str, Value]:
    """Options as a job or a session's settings write them down: a reference is a mapping there."""
    return {
        name: value if isinstance(value, str) else Reference.model_validate(dict(value))
        for name, value in options.items()
    }


def effective(
    own: Mapping[str, Value], profile: Mapping[str, Value], *, own_broker: bool, base: Path
) -> dict[str, Value]:
    """The options a source is read with.

    The profile's are those of its broker, so a source with a broker of its own has none of them: a password never
    goes to another broker. A source's own credentials replace the profile's as a whole.
    """
    inherited = {} if own_broker else dict(profile)
    if any(is_security(name) for name in own):
        inherited = {name: value for name, value in inherited.items() if not is_security(name)}
    return located(inherited | dict(own), base)


def _secret(name: str, where: Reference) -> str:
    if where.env_var is not None:
        value = os.environ.get(where.env_var, "")
        if not value:
            raise SECRET_MISSING.error(f"'{name}' refers to the variable {where.env_var}, which is not set.")
        return value
    value = _read(name, str(where.file)).rstrip("\r\n")
    if not value:
        raise SECRET_MISSING.error(f"'{name}' refers to the file {where.file}, which is empty.")
    return value


def _read(name: str, file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as problem:
        reason = (problem.strerror or "it cannot be read").lower()
        raise SECRET_MISSING.error(f"'{name}' refers to the file {file}: {reason}.") from None
    except UnicodeDecodeError:
        raise KEY_UNREADABLE.error(f"'{name}' refers to the file {file}, which is not text.") from None


def _pem(name: str, file: str) -> str:
    text = _read(name, file)
    if "-----BEGIN " not in text:
        raise KEY_UNREADABLE.error(f"'{name}' refers to the file {file}, which is not PEM.")
    return text


def _pkcs8(file: str) -> str:
    text = _pem("ssl.key.location", file)
    if not _PKCS8.search(text):
        raise KEY_UNREADABLE.error(f"the key in {file} is not in the form PKCS #8.")
    return text


def _jaas(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _absolute(path: str, base: Path) -> str:
    return str(base / Path(path).expanduser())
