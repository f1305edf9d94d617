"""Messages in tests as somebody else's code writes them: confluent-kafka's own serializers, and schemas registered."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

Serialize = Callable[[Any], bytes]


def avro_serializer(client: SchemaRegistryClient, topic: str, schema: str, **options: Any) -> Serialize:
    """`serialize(value)`: the schema is registered with the first one."""
    serializer = AvroSerializer(client, schema, conf=options or None)
    context = SerializationContext(topic, MessageField.VALUE)
    return lambda value: bytes(serializer(value, context))


def protobuf_serializer(client: SchemaRegistryClient, topic: str, message: Any, **options: Any) -> Serialize:
    serializer = ProtobufSerializer(message, client, {"use.deprecated.format": False, **options})
    context = SerializationContext(topic, MessageField.VALUE)
    return lambda value: bytes(serializer(value, context))


def register(client: SchemaRegistryClient, subject: str, text: str, kind: str = "AVRO") -> int:
    return int(client.register_schema(subject, Schema(text, kind)))


def python_of(proto: str, folder: Path, name: str) -> ModuleType:
    """The Python module that protoc makes of a text, as a producer would use it."""
    _protoc(proto, folder, name, f"--python_out={folder}")
    found = importlib.util.spec_from_file_location(f"{name}_pb2", folder / f"{name}_pb2.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def messages_of(proto: str, folder: Path, name: str) -> Callable[[str], Any]:
    """The classes of a text's messages, by full name. Their pool is their own: versions of a message differ in nothing
    but their text, and one pool takes one of them."""
    _protoc(proto, folder, name, f"--descriptor_set_out={folder / name}.pb", "--include_imports")
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString((folder / f"{name}.pb").read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return lambda full_name: GetMessageClass(pool.FindMessageTypeByName(full_name))


def _protoc(proto: str, folder: Path, name: str, *options: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.proto").write_text(proto)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", *options, f"{name}.proto"]
    subprocess.run(command, check=True, timeout=60)
