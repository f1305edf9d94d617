"""Private keys with a password, for Kafka's Java client.

Kafka's client reads encrypted keys in PEM only in a scheme that OpenSSL has long stopped writing by itself (PBES1).
Java itself knows the newer one, so the key is opened here, in memory, and given to the client without its password.
"""

from __future__ import annotations

import base64
import re
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock.errors.catalogue import KEY_UNREADABLE

_BODY = re.compile(r"-----BEGIN ENCRYPTED PRIVATE KEY-----(.*?)-----END ENCRYPTED PRIVATE KEY-----", re.DOTALL)
_DECRYPT = 2  # javax.crypto.Cipher.DECRYPT_MODE


def opened(spark: SparkSession, pem: str, password: str) -> str:
    """The key of a PEM text without its encryption; KEY_UNREADABLE when the password is not its own."""
    found = _BODY.search(pem)
    if found is None:
        return pem
    java = spark._jvm
    try:
        info = java.javax.crypto.EncryptedPrivateKeyInfo(base64.b64decode("".join(found.group(1).split())))
        parameters = info.getAlgParameters()
        # The scheme's own name is only "PBES2"; the parameters name the functions in it.
        scheme = parameters.toString() if info.getAlgName() == "PBES2" else info.getAlgName()
        secret = java.javax.crypto.spec.PBEKeySpec(_characters(spark, password))
        key = java.javax.crypto.SecretKeyFactory.getInstance(scheme).generateSecret(secret)
        cipher = java.javax.crypto.Cipher.getInstance(scheme)
        cipher.init(_DECRYPT, key, parameters)
        der = bytes(info.getKeySpec(cipher).getEncoded())
    except (Py4JError, ValueError):
        # Java's message is left out: it has been seen to quote what it was given.
        raise KEY_UNREADABLE.error(
            "the private key cannot be opened with its password.", hint="Check 'ssl.key.password'."
        ) from None
    lines = base64.encodebytes(der).decode("ascii")
    return f"-----BEGIN PRIVATE KEY-----\n{lines}-----END PRIVATE KEY-----\n"


def _characters(spark: SparkSession, text: str) -> Any:
    """A char[] of Java's: a text would come back from there as a text of Python's."""
    gateway = spark.sparkContext._gateway
    array = gateway.new_array(gateway.jvm.char, len(text))
    for index, sign in enumerate(text):
        array[index] = sign
    return array
