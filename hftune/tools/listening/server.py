"""A port that is held, and an application that answers at it until the process is told to stop."""

from __future__ import annotations

import importlib.util
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from hftune.errors import ArgumentError

NEEDED = ("starlette", "uvicorn")
LOCAL = ("127.0.0.1", "localhost", "::1")
"""Names by which a browser or a client asks for this machine."""
# Seconds of Ctrl-C to the end: open streams get their last event in the first, and are cut off after it.
_GRACE, _END = 1, 1.6


def missing_packages(command: str) -> Iterator[ArgumentError]:
    """The problem where the packages of a server are not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        fix = "pip install 'hftune[serve]'"
        yield ArgumentError(f"a server needs {' and '.join(missing)}", place=command, fix=fix)


def bound(host: str, port: int) -> socket.socket:
    """A socket that holds the port.

    Raises:
        ArgumentError: It is taken, or there is no such address here.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, socket.SOCK_STREAM)
        # The port of a server that has just ended is free.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        fix = "give another --port (0: any that is free), or end what listens there"
        cause = f"{host}:{port} cannot be listened at: {error.strerror or error}"
        raise ArgumentError(cause, place="--host, --port", fix=fix) from error
    return found


def address_of(listening: socket.socket) -> str:
    """`http://127.0.0.1:8000` of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def run_app(app: Any, listening: socket.socket, ready: Callable[[], None], stop: Callable[[], None]) -> None:
    """Answer requests at a socket until this thread is interrupted; then open streams are ended, and the port freed.

    Args:
        app: Of ASGI.
        ready: Called when clients may ask.
        stop: Called when the end has come, before it is waited for.
    """
    import uvicorn

    # They would print what clients send, or a traceback of what was cut off; errors of requests are logged by the app.
    for logger in ("uvicorn", "uvicorn.error", "asyncio", "concurrent.futures"):
        logging.getLogger(logger).setLevel(logging.CRITICAL + 1)
    options: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off", "server_header": False}
    runner = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=_GRACE, **options))
    # From here on clients wait for the server instead of being refused.
    listening.listen(2048)
    # In a thread of its own: signals come to this one, which hftune's own handlers interrupt.
    # An event, not `Thread.join`: Python 3.11 takes a thread for ended whose join was interrupted.
    ended = threading.Event()

    def run() -> None:
        try:
            runner.run([listening])
        finally:
            ended.set()

    threading.Thread(target=run, name="hftune server", daemon=True).start()
    try:
        ready()
        # With a timeout: a signal that another thread receives does not wake this one.
        while not ended.wait(0.5):
            pass
        raise RuntimeError("the server ended by itself")
    finally:
        stop()
        runner.should_exit = True
        ended.wait(_END)
