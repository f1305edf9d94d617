"""Connections of dbt's threads to the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from dbt.adapters.contracts.connection import AdapterResponse, Connection, ConnectionState
from dbt.adapters.events.logging import AdapterLogger
from dbt.adapters.sql import SQLConnectionManager

from dbt.adapters.penstock.errors import StreamError
from dbt.adapters.penstock.project import project_dir
from dbt.adapters.penstock.session import open_session
from penstock.errors import PenstockError
from penstock.paths import ProjectPaths

if TYPE_CHECKING:
    from penstock.engine.process import Endpoint

logger = AdapterLogger("Penstock")


class PenstockConnectionManager(SQLConnectionManager):  # type: ignore[misc]
    """One Spark Connect session per connection; the engine is found or started once per run."""

    TYPE = "penstock"

    def __init__(self, profile: Any, mp_context: Any) -> None:
        super().__init__(profile, mp_context)
        self._endpoint: Endpoint | None = None
        self.on_engine: Callable[[], None] | None = None  # called once, when the engine is there
        self._starting = Lock()

    @property
    def paths(self) -> ProjectPaths:
        return ProjectPaths(project_dir(self.profile))

    def endpoint(self) -> Endpoint:
        """The engine of the project, started if it is not up."""
        with self._starting:
            if self._endpoint is None:
                from penstock.control.up import ensure_up

                settings = self.profile.credentials.settings(self.profile.target_name)
                self._endpoint = ensure_up(self.paths, settings, progress=logger.info)
                if self.on_engine is not None:
                    self.on_engine()
            return self._endpoint

    def open(self, connection: Connection) -> Connection:
        """Called by dbt when the first statement of a connection comes."""
        if connection.state == ConnectionState.OPEN:
            return connection
        try:
            connection.handle = open_session(self.endpoint().url)
        except PenstockError as error:
            connection.handle = None
            connection.state = ConnectionState.FAIL
            raise StreamError(error) from None
        connection.state = ConnectionState.OPEN
        return connection

    def cancel(self, connection: Connection) -> None:
        connection.handle.cancel()

    def execute(
        self, sql: str, auto_begin: bool = False, fetch: bool = False, limit: int | None = None
    ) -> tuple[AdapterResponse, Any]:
        from dbt_common.clients.agate_helper import empty_table

        _, cursor = self.add_query(self._add_query_comment(sql), auto_begin)
        if fetch:
            return self.get_response(cursor), self.get_result_from_cursor(cursor, limit)
        with self.exception_handler(sql):
            cursor.drain()
        return self.get_response(cursor), empty_table()

    @classmethod
    def get_response(cls, cursor: Any) -> AdapterResponse:
        return AdapterResponse(_message="OK")

    @classmethod
    def data_type_code_to_name(cls, type_code: int | str) -> str:
        return str(type_code)  # a cursor's description has names already

    @contextmanager
    def exception_handler(self, sql: str) -> Iterator[None]:
        try:
            yield
        except PenstockError as error:
            raise StreamError(error) from None

    # Spark has no transactions.
    def begin(self) -> Connection:
        return self.get_thread_connection()

    def commit(self) -> Connection:
        return self.get_thread_connection()

    def add_begin_query(self, *args: Any, **kwargs: Any) -> None:
        return None

    def add_commit_query(self, *args: Any, **kwargs: Any) -> None:
        return None

    def clear_transaction(self) -> None:
        return None
