"""Stream tests: a model's stream, run on records of a file in the place of a broker. See docs/stream-tests.md."""
