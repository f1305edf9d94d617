"""Questions to a schema registry that speaks Confluent's API.

Rules
- A schema is immutable by its id: what was once read is kept below `.penstock/registry` and never asked for again.
- A registry that does not answer, refuses, or does not know is an error of its own kind each (21xx).
- Secrets are looked up when a client is made; they are in no message and no file.
"""
