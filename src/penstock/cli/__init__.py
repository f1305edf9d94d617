"""The command line. One file a command or a small group; `main.py` puts them together.

Rules
- A command module imports nothing heavy at its top: `penstock --help` and `penstock status` load neither dbt nor Spark.
- Results go to standard output, progress and errors to standard error; with `--output json` an error is on
  standard output too, as `{"error": {...}}`.
- A command raises `PenstockError`; only `main.py` turns it into a line and an exit code.
"""
