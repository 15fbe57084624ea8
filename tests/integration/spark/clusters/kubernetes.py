"""A fake API server of Kubernetes: it stores the objects that it gets, and runs no pod."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class ApiServer:
    """Listens on a loopback port, and stores the created objects by kind."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        """For `--master`, without TLS."""
        return f"k8s://http://127.0.0.1:{self._server.server_address[1]}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        made = self.made

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                thing = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                made[thing["kind"]] = thing
                answer = json.dumps(thing | {"metadata": {"namespace": "default", "uid": "1"} | thing["metadata"]}).encode()
                self.send_response(201)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_PATCH = do_POST  # noqa: N815 - the method that is called

            def log_message(self, *_: object) -> None:
                """Be quiet."""

        return Handler

    def __enter__(self) -> Self:
        """Answer."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
