"""The guard against network access, in a fresh interpreter each time: it works by being imported at start-up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

NETGUARD = Path(__file__).parents[1] / "netguard"

# 192.0.2.0/24 and .invalid are reserved: no machine answers to them even if the guard fails.
REFUSED = [
    "socket.socket().connect(('192.0.2.1', 80))",
    "socket.socket().connect_ex(('192.0.2.1', 80))",
    "socket.socket().connect(('hub.invalid', 443))",
    "socket.socket(socket.AF_INET6).connect(('2001:db8::1', 80))",
    "socket.socket(socket.AF_INET6).connect(('::ffff:192.0.2.1', 80))",
    "socket.getaddrinfo('hub.invalid', 443)",
    "socket.getaddrinfo(b'hub.invalid', 443)",
    "socket.create_connection(('hub.invalid', 443), timeout=1)",
    "import urllib.request; urllib.request.urlopen('http://hub.invalid/')",
]
ALLOWED = """
server = socket.create_server(('127.0.0.1', 0))
here = server.getsockname()
socket.create_connection(here)
socket.create_connection(('localhost', here[1]))
assert socket.socket().connect_ex(here) == 0
other = socket.create_server(('127.0.0.2', 0))
socket.create_connection(other.getsockname())
socket.getaddrinfo(None, 0, flags=socket.AI_PASSIVE)
socket.getaddrinfo('::1', 80, flags=socket.AI_NUMERICHOST)
left, right = socket.socketpair()
left.sendall(b'x')
assert right.recv(1) == b'x'
local = socket.socket(socket.AF_UNIX)
local.bind('door')
local.listen()
socket.socket(socket.AF_UNIX).connect('door')
# The guard lets the question through; whether a machine knows its own name is its own affair.
try: socket.getaddrinfo(socket.gethostname(), 80)
except socket.gaierror: print('unknown to itself')
"""


def guarded(code: str, folder: Path, *further_path: Path) -> subprocess.CompletedProcess[str]:
    """Run code under the guard, with `folder` to work in and to log to."""
    search = os.pathsep.join(str(part) for part in (NETGUARD, *further_path))
    env = {**os.environ, "PYTHONPATH": search, "HFTUNE_NETGUARD_LOG": str(folder / "attempts.log")}
    command = [sys.executable, "-c", f"import socket\n{code}"]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=60)


def test_refuses_other_machines_and_logs_a_line_each(tmp_path: Path) -> None:
    tried = "\n".join(
        f"try: exec({code!r})\nexcept OSError as error: print(error)\nelse: print('went through')" for code in REFUSED
    )
    result = guarded(tried, tmp_path)

    assert result.stdout.count("network is cut off in tests") == len(REFUSED), result.stdout + result.stderr
    lines = (tmp_path / "attempts.log").read_text().splitlines()
    assert len(lines) == len(REFUSED)
    for line in lines:
        pid, program, target, stack = line.split("\t")
        assert pid.isdigit() and program == "-c"
        assert any(name in target for name in ("192.0.2.1", "hub.invalid", "2001:db8::1"))
        assert 1 <= len(stack.split(" < ")) <= 3 and "sitecustomize.py" not in stack


def test_lets_this_machine_through(tmp_path: Path) -> None:
    result = guarded(ALLOWED, tmp_path)

    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "attempts.log").exists()


def test_children_are_guarded_too(tmp_path: Path) -> None:
    child = "import socket; socket.getaddrinfo('hub.invalid', 443)"
    result = guarded(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])", tmp_path)

    assert result.returncode == 0
    assert len((tmp_path / "attempts.log").read_text().splitlines()) == 1


def test_refuses_without_a_log(tmp_path: Path) -> None:
    code = "import os; del os.environ['HFTUNE_NETGUARD_LOG']\nsocket.getaddrinfo('hub.invalid', 443)"

    assert "network is cut off in tests" in guarded(code, tmp_path).stderr


def test_runs_the_sitecustomize_it_hides(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.seen = True\n")

    result = guarded("import sys; print(sys.seen)\nsocket.getaddrinfo('hub.invalid', 1)", tmp_path, tmp_path)

    assert result.stdout.strip() == "True"
    assert "network is cut off in tests" in result.stderr


def test_two_copies_do_not_call_each_other_for_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text((NETGUARD / "sitecustomize.py").read_text())

    result = guarded("print('started')", tmp_path, tmp_path)

    assert result.stdout.strip() == "started"
    assert result.stderr == ""


def test_a_broken_sitecustomize_below_stops_neither_python_nor_the_guard(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")

    result = guarded("print('started')\nsocket.getaddrinfo('hub.invalid', 1)", tmp_path, tmp_path)

    assert result.stdout.strip() == "started"
    assert "theirs" in result.stderr
    assert "network is cut off in tests" in result.stderr
