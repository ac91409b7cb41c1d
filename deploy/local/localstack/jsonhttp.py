"""A small JSON client with kept-alive connections, one per thread.

In: method, path, body. Out: status and decoded body. Used for the API server and for slurmrestd, so that
bringing up a thousand nodes takes one connection per worker and not a process or a TLS handshake per node.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Headers = Mapping[str, str]
NO_HEADERS: Headers = {}


class JsonClient:
    def __init__(self, url: str, headers: Headers = NO_HEADERS, *, authority: Path | None = None) -> None:
        self._address = urlsplit(url)
        self._headers = {"Content-Type": "application/json", **headers}
        self._authority = authority
        self._local = threading.local()

    def request(self, method: str, path: str, body: object = None, *, timeout: float = 20) -> tuple[int, Any]:
        """Raises OSError if there is no answer. If the server has closed the connection, opens another."""
        payload = None if body is None else json.dumps(body)
        for last_try in (False, True):
            connection = self._connection(timeout)
            try:
                connection.request(method, path, payload, self._headers)
                answer = connection.getresponse()
                return answer.status, _decode(answer.read())
            except (http.client.HTTPException, OSError) as error:
                connection.close()
                if last_try or isinstance(error, TimeoutError | ConnectionRefusedError):
                    raise error if isinstance(error, OSError) else OSError(str(error)) from error
        raise AssertionError("unreachable")

    def is_ok(self, path: str, *, timeout: float = 2.0) -> bool:
        try:
            return self.request("GET", path, timeout=timeout)[0] == 200
        except OSError:
            return False

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            host, port = self._address.hostname or "127.0.0.1", self._address.port
            if self._address.scheme == "https":
                connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=self._trust())
            else:
                connection = http.client.HTTPConnection(host, port, timeout=timeout)
            self._local.connection = connection
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        return connection

    def _trust(self) -> ssl.SSLContext:
        if self._authority is not None:
            return ssl.create_default_context(cafile=str(self._authority))
        # Health endpoints of daemons that make a certificate for themselves at their start, on loopback.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


def _decode(raw: bytes) -> Any:
    """The JSON value, or the plain text that health endpoints and some errors answer with."""
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")
