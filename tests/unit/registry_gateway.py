"""A door in front of the real schema registry, for tests of credentials and outages."""

from __future__ import annotations

import base64
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests


class Gateway:
    """A door in front of the registry: it wants a user and password or a token, speaks TLS, or is shut."""

    def __init__(
        self, url: str, *, user_info: str | None = None, token: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.open = True
        gateway, base = self, url.removesuffix("/apis/ccompat/v7")
        expected = None if token is None else f"Bearer {token}"
        if user_info is not None:
            expected = f"Basic {base64.b64encode(user_info.encode()).decode()}"

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if not gateway.open:
                    self.send_error(503)
                elif expected is not None and self.headers.get("Authorization") != expected:
                    self.send_error(401)
                else:
                    answer = requests.get(base + self.path, timeout=10)
                    self.send_response(answer.status_code)
                    self.end_headers()
                    self.wfile.write(answer.content)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}/apis/ccompat/v7"

    def close(self) -> None:
        self._server.shutdown()
