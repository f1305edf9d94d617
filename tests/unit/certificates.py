"""Certificates in tests: an authority, a server's for 127.0.0.1, and a client's whose key has a password."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificates(files: Path, *, server: str, key_password: str) -> None:
    """`ca.pem`, `<server>.plain` and `.pem`, `client.pem` and `client.key`, and `key-password` with the password."""
    _openssl(files, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority",
             "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
    (files / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in (server, "client"):
        _openssl(files, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.plain",
                 "-out", f"{name}.csr")  # fmt: skip
        _openssl(files, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                 "-days", "2", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
    _openssl(files, "pkcs8", "-topk8", "-in", "client.plain", "-out", "client.key", "-v2", "aes-256-cbc",
             "-passout", f"pass:{key_password}")  # fmt: skip
    (files / "key-password").write_text(key_password)


def _openssl(cwd: Path, *command: str) -> None:
    subprocess.run(["openssl", *command], cwd=cwd, check=True, capture_output=True)
