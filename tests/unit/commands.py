"""The commands `dbt` and `penstock` for tests, started in a blink.

Python takes three seconds to import dbt, and tests call hundreds of commands. One process of the run imports everything
once; each command is a fork of it, with the working directory, the environment, the standard streams and the arguments
of whoever started it, and nothing of an earlier command. What a test starts is a small client (`ask`), which
takes part in pipes, signals, exit codes and timeouts as the command itself would. The end-to-end tests have such a
process of the wheel's interpreter, and start the installed commands where the start itself is tested.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

_LENGTH = struct.Struct("!I")
_CODE = struct.Struct("!i")  # as Popen.returncode: negative for a signal
_NO_SERVER = 125
_SOCKET = "socket"
_CLIENT = """\
#!{python} -IS
import sys
sys.path.insert(0, {here!r})
import commands
sys.exit(commands.ask({where!r}, [{program!r}, *sys.argv[1:]]))
"""
HERE = Path(__file__).parent
_PROJECT = {
    "dbt_project.yml": "{name: warm, profile: warm, flags: {send_anonymous_usage_stats: false}}\n",
    "profiles.yml": "warm: {target: dev, outputs: {dev: {type: penstock, schema: warm, kafka: {embedded: true}}}}\n",
    "models/sources.yml": """\
sources:
  - name: shop
    tables:
      - name: clicks
        config: {meta: {stream: {topic: clicks, value: {format: json}}}}
        columns: [{name: item, data_type: string, data_tests: [not_null]}]
models:
  - name: items
    description: Each item once.
    columns: [{name: item, data_type: string, data_tests: [unique]}]
""",
    "models/items.sql": """\
{{ config(materialized='dynamic_table') }}
select item, count(*) as clicks from {{ source('shop', 'clicks') }} group by item
""",
    "models/other.sql": "select * from {{ ref('items') }}\n",
}


def warm(program: str) -> str:
    """The path of `dbt` or `penstock`, for subprocess."""
    return str(directory() / program)


@functools.cache
def directory(python: str = sys.executable) -> Path:
    """Where the clients are; the server behind them, a process of that interpreter, ends with this process."""
    import subprocess
    import tempfile

    where = Path(tempfile.mkdtemp(prefix="penstock-commands-"))
    for program in ("dbt", "penstock"):
        client = where / program
        client.write_text(_CLIENT.format(python=python, here=str(HERE), where=str(where), program=program))
        client.chmod(0o700)
    kept = dict(os.environ)
    if python != sys.executable:  # it has packages of its own
        kept.pop("PYTHONPATH", None)
    server = subprocess.Popen([python, __file__, str(where)], stdin=subprocess.PIPE, env=kept)
    atexit.register(_end, server, where)
    return where


def _end(server: subprocess.Popen[bytes], where: Path) -> None:
    server.communicate()  # closes its standard input
    shutil.rmtree(where, ignore_errors=True)


# -- the client: in place of the command ------------------------------------------------------------------------------
def ask(where: str, argv: list[str]) -> int:
    """Have the server run a command with this process's surroundings; its exit code."""
    with socket.socket(socket.AF_UNIX) as server:
        while True:
            try:
                server.connect(f"{where}/{_SOCKET}")
                break
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.05)  # it is being started; whoever waits for this process has a limit
        request = json.dumps({"argv": argv, "cwd": str(Path.cwd()), "environment": dict(os.environ)}).encode()
        streams = array.array("i", [0, 1, 2])
        server.sendmsg([_LENGTH.pack(len(request))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        server.sendall(request)
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, lambda number, _: server.sendall(bytes([number])))
        answer = server.recv(_CODE.size, socket.MSG_WAITALL)
    code = int(_CODE.unpack(answer)[0]) if answer else _NO_SERVER
    if code < 0:  # ended by a signal: so does this process
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


# -- the server -------------------------------------------------------------------------------------------------------
def _serve(where: Path) -> None:
    """Answer clients until the process that started this one is gone."""
    _warm_up(where)
    use(where)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which ends this process in its time
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(where / _SOCKET))
        listening.listen(64)
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            client, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _keep(client)
            client.close()


def _keep(client: socket.socket) -> NoReturn:
    """Run the command that a client asks for; pass signals on to it and its exit code back."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, streams, _, _ = socket.recv_fds(client, _LENGTH.size, 3)
    request = json.loads(client.recv(_LENGTH.unpack(length)[0], socket.MSG_WAITALL))
    child = os.fork()
    if child == 0:
        client.close()
        _become(streams, **request)
    for each in streams:
        os.close(each)
    ending = os.pidfd_open(child)
    while ending not in select.select([client, ending], [], [])[0]:
        try:
            heard = client.recv(1)
        except ConnectionError:
            heard = b""
        os.kill(child, heard[0] if heard else signal.SIGKILL)  # a client that was killed takes its command with it
        if not heard:
            os._exit(0)
    client.sendall(_CODE.pack(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    os._exit(0)


def _become(streams: list[int], argv: list[str], cwd: str, environment: dict[str, str]) -> NoReturn:
    import threading

    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, each in enumerate(streams):
            os.dup2(each, number)
            os.close(each)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [str(Path(sys.executable).with_name(argv[0])), *argv[1:]]
        code = _call(argv[0])
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        os._exit(code)


def _call(program: str) -> int:
    """What the interpreter does with a program's end."""
    import traceback

    from dbt.cli.main import cli

    from penstock.cli.main import main

    try:
        {"dbt": cli, "penstock": main}[program]()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        return 1
    return 0


def use(where: Path, put: Callable[[object, str, object], None] = setattr) -> None:
    """Have this process's Penstock call dbt from there, too."""
    from penstock.cli import dbt
    from penstock.dagster import definitions, project

    client = str(where / "dbt")
    put(dbt, "command_line", lambda args: [client, *args])
    for module in (definitions, project):
        put(module, "dbt_command", lambda: [client])


def _warm_up(where: Path) -> None:
    """Import what commands import; and parse a project, with which dbt makes most of what it makes on first use."""
    import gc
    import importlib

    for module in ("penstock.cli.main", "pyspark.sql.connect.session", "dbt.adapters.penstock"):
        importlib.import_module(module)
    from dbt.cli.main import dbtRunner

    project = where / "project"
    for name, text in _PROJECT.items():
        file = project / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    # The static parser has threads, which a fork does not have: it is left to the commands.
    parsed = dbtRunner().invoke(
        ["--quiet", "parse", "--no-static-parser", "--project-dir", str(project), "--profiles-dir", str(project)]
    )
    assert parsed.success, parsed.exception
    gc.collect()
    gc.freeze()  # what is here is here for good: no fork looks through it


if __name__ == "__main__":
    sys.path.pop(0)  # this file's directory
    _serve(Path(sys.argv[1]))
