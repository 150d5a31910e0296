"""Cuts Python off from the network, so that a test can prove that nothing calls home.

    PYTHONPATH=tests/netguard HFTUNE_NETGUARD_LOG=attempts.log python run_sft.py ...

Python imports this file by itself at start-up, in every child process too, when its folder is first on PYTHONPATH.
An attempt at anything but this machine becomes one line in the log (process id, argv[0], target and the three nearest
frames, with tabs between) and an OSError. Sockets that C++ or Rust code opens by itself are not seen, and neither is
Python started with -I, -E or -S.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import ipaddress
import os
import socket
import sys
from typing import Any, NoReturn

LOG_VARIABLE = "HFTUNE_NETGUARD_LOG"
FRAMES = 3

_connect, _connect_ex, _getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo


@functools.cache
def own_names() -> frozenset[str]:
    """The names by which this machine calls itself; the empty name means any local address."""
    hostname = socket.gethostname().lower()
    return frozenset({"", "localhost", "ip6-localhost", hostname, hostname.split(".")[0]})


@functools.cache
def own_addresses() -> frozenset[str]:
    """What our own hostname resolves to; launchers connect to it instead of to the name."""
    try:
        found = _getaddrinfo(socket.gethostname(), None)
    except OSError:
        return frozenset()
    return frozenset(str(entry[4][0]) for entry in found)


def is_local(host: str | bytes | None) -> bool:
    """Whether a host, by name or by number, is this machine."""
    if host is None:
        return True
    name = (host.decode("idna") if isinstance(host, bytes | bytearray) else str(host)).lower()
    if name in own_names():
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False  # some other machine's name
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback or mapped.is_unspecified or str(mapped) in own_addresses()


def callers() -> str:
    """The nearest frames outside this file and the socket module, innermost first."""
    frame, found = sys._getframe(1), []
    while frame is not None and len(found) < FRAMES:
        code = frame.f_code
        if code.co_filename not in (__file__, socket.__file__):
            found.append(f"{code.co_filename}:{frame.f_lineno}:{code.co_name}")
        frame = frame.f_back
    return " < ".join(found)


def refuse(target: str) -> NoReturn:
    """Write the attempt down and raise."""
    program = (getattr(sys, "argv", None) or ["?"])[0]
    fields = (str(os.getpid()), program, target, callers())
    line = "\t".join(" ".join(field.split()) for field in fields) + "\n"
    path = os.environ.get(LOG_VARIABLE)
    if path:
        # A log that cannot be written must not hide the refusal itself. One write, so that processes do not mix lines.
        with contextlib.suppress(OSError):
            log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(log, line.encode("utf-8", "backslashreplace"))
            finally:
                os.close(log)
    raise OSError(f"network is cut off in tests: {target}")


def check_address(connection: socket.socket, address: Any) -> None:
    """Refuse an internet address that is not this machine; other families (AF_UNIX) never leave it."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple) or not address:
        return
    if not is_local(address[0]):
        refuse(":".join(str(part) for part in address[:2]))


def connect(self: socket.socket, address: Any) -> None:
    check_address(self, address)
    return _connect(self, address)


def connect_ex(self: socket.socket, address: Any) -> int:
    check_address(self, address)
    return _connect_ex(self, address)


def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_local(host):
        name = host.decode(errors="replace") if isinstance(host, bytes) else host
        refuse(f"{name}:{port}")
    return _getaddrinfo(host, port, *args, **kwargs)


def chain() -> None:
    """Run the sitecustomize that this one hides: the next one further down the path."""
    here = os.path.dirname(os.path.realpath(__file__))
    folders = [os.path.realpath(folder) for folder in sys.path]
    if here not in folders:
        return
    # Only further down: two copies of this file must not call each other for ever.
    below = [folder for folder in folders[folders.index(here) + 1 :] if folder != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", below)
    if spec is not None and spec.loader is not None and spec.origin is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# Python itself reports an exception from here on stderr and goes on; the guard is in place before anything can raise.
socket.socket.connect = connect  # type: ignore[method-assign]
socket.socket.connect_ex = connect_ex  # type: ignore[method-assign]
socket.getaddrinfo = getaddrinfo
chain()
