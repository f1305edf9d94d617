"""`python -m bench [name …] [--quick]`: run measurements and print their tables."""

from __future__ import annotations

import argparse
import signal
import sys

from bench import dagster_weight, drain, engine, formats, idle, latency, model_tests, queries, tables, threshold, warm
from bench.report import machine, note, wait_for_calm

MEASUREMENTS = {
    "latency": latency.run,
    "drain": drain.run,
    "threshold": threshold.run,
    "warm": warm.run,
    "engine": engine.run,
    "formats": formats.run,
    "queries": queries.run,
    "tables": tables.run,
    "idle": idle.run,
    "model_tests": model_tests.run,
    "dagster": dagster_weight.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(MEASUREMENTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="one or two minutes each; less exact")
    parser.add_argument("--rounds", type=int, help="how often the contenders take turns")
    parser.add_argument("--rows", type=int, help="rows of the drained topic; rows a second for latency")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for an idle machine")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in MEASUREMENTS:
            parser.error(f"unknown measurement '{name}'; there are {', '.join(MEASUREMENTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # services are ended as by Ctrl-C
    print(machine())
    for name in arguments.names or MEASUREMENTS:
        wait_for_calm(arguments.patience)
        note(f"measuring {name}")
        MEASUREMENTS[name](quick=arguments.quick, rounds=arguments.rounds, rows=arguments.rows)


if __name__ == "__main__":
    main()
