"""A server on this machine that speaks S3: moto's, a request at a time, as its steps are atomic."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from threading import Thread
from urllib.request import Request, urlopen

import pytest

BUCKET = "runs-of-a-test"


@contextmanager
def serving() -> Generator[int]:
    """The port of a server that has a bucket."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=False)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        urlopen(Request(f"http://127.0.0.1:{server.server_port}/{BUCKET}", method="PUT")).close()
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def environment(port: int) -> dict[str, str]:
    """What lets a process in there; nobody outside this machine is asked who it is."""
    return {
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "anything",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1",
    }


def let_in(patch: pytest.MonkeyPatch, port: int) -> None:
    """Have this process speak to that server."""
    for name, value in environment(port).items():
        patch.setenv(name, value)


@contextmanager
def line_to(port: int, longest: int, then: Callable[[], object]) -> Generator[int]:
    """The port of a line to a server that breaks, for good, once so many bytes were sent over it.

    Args:
        port: of the server.
        longest: bytes that it carries.
        then: called when it breaks.
    """
    left, listener = longest, socket.create_server(("127.0.0.1", 0))

    def carry(near: socket.socket) -> None:
        nonlocal left
        with near, socket.create_connection(("127.0.0.1", port)) as far:
            Thread(target=_copied, args=(far, near), daemon=True).start()
            while left > 0 and (some := near.recv(min(left, 4096))):
                far.sendall(some)
                left -= len(some)
            if left <= 0:
                then()
            for each in (near, far):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while left > 0:
                carry(listener.accept()[0])
        listener.close()

    Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


def _copied(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while some := source.recv(4096):
            target.sendall(some)
        target.shutdown(socket.SHUT_WR)
