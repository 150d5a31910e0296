"""Two machines on one: network namespaces joined by a virtual cable, with host names and mounts of their own.

Needs `unshare`, `nsenter` and `ip`, and a kernel that lets this user make namespaces; no root. There is no network in
them but the cable.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import ROOT, Finished, without_launcher

_TOOLS = ("unshare", "nsenter", "ip", "mount", "hostname")


@dataclass
class Host:
    """A machine: the process that keeps its namespaces, its address and the end of the cable."""

    name: str
    address: str
    cable: str
    keeper: subprocess.Popen[bytes]
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def inside(self, *command: str) -> list[str]:
        """A command, as one that runs on this machine."""
        enter = ["nsenter", "-t", str(self.keeper.pid), "-U", "-n", "-m", "-u", "--preserve-credentials"]
        return [*enter, "--wd=" + str(ROOT), "--", *command]

    def do(self, *command: str) -> None:
        """Run something short."""
        subprocess.run(self.inside(*command), check=True, capture_output=True)

    def start(self, command: list[str], log: Path, more: Mapping[str, str]) -> None:
        """Start something long, with its output in a file."""
        environment = without_launcher(os.environ) | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": self.cable,
            **more,
        }
        with log.open("wb") as stream:
            started = subprocess.Popen(
                self.inside(*command), env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.running.append(started)

    def stop(self, number: int = signal.SIGKILL) -> None:
        """A signal to everything that was started here, as when the machine goes down."""
        for started in self.running:
            for pid in _below(started.pid):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue


def _below(pid: int) -> list[int]:
    import psutil

    try:
        top = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return []
    return [pid, *(child.pid for child in top.children(recursive=True))]


@dataclass
class TwoHosts:
    """Alpha and beta."""

    hosts: tuple[Host, Host]
    folder: Path

    def unshare(self, folder: Path) -> tuple[Path, Path]:
        """Give each machine a folder of its own under the same name; returns where these are seen from outside."""
        folder.mkdir(parents=True, exist_ok=True)
        places = []
        for host in self.hosts:
            place = folder.with_name(f"{folder.name}-on-{host.name}")
            place.mkdir()
            host.do("mount", "--bind", str(place), str(folder))
            places.append(place)
        return places[0], places[1]

    def run(self, port: int, command: list[str], more: Mapping[str, str], *, launcher: str = "torchrun") -> None:
        """Start a script on both machines, one process each: by torchrun, deepspeed, or as srun would."""
        for number, host in enumerate(self.hosts):
            if launcher == "srun":  # a process of its own, told who it is by SLURM's variables
                host.start(["env", *self._slurm(number, port), "python", *command], self.log(number), more)
                continue
            if launcher == "torchrun":
                start = ["torchrun", "--nnodes", "2", "--nproc_per_node", "1", "--node_rank", str(number)]
            else:
                hostfile = self.folder / "hostfile"
                hostfile.write_text("".join(f"{host.address} slots=1\n" for host in self.hosts))
                start = ["deepspeed", "--hostfile", str(hostfile), "--no_ssh", "--node_rank", str(number)]
            meet = ["--master_addr", self.hosts[0].address, "--master_port", str(port)]
            host.start([*start, *meet, *command], self.log(number), more)

    def _slurm(self, number: int, port: int) -> list[str]:
        variables = {
            "SLURM_STEP_NUM_TASKS": 2,
            "SLURM_PROCID": number,
            "SLURM_LOCALID": 0,
            "SLURM_NODEID": number,
            "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
            "SLURM_STEP_NODELIST": "alpha,beta",
            "MASTER_ADDR": self.hosts[0].address,  # nothing resolves names here
            "MASTER_PORT": port,
        }
        return [f"{name}={value}" for name, value in variables.items()]

    def log(self, number: int) -> Path:
        """Output of a machine."""
        return self.folder / f"{self.hosts[number].name}.log"

    def wait_for(self, words: str, number: int, seconds: float) -> None:
        """Until a machine has said something."""
        end = time.monotonic() + seconds
        while words not in self.log(number).read_text(errors="replace"):
            assert time.monotonic() < end, self.log(number).read_text(errors="replace")[-4000:]
            assert self.hosts[number].running[-1].poll() is None, self.log(number).read_text(errors="replace")[-4000:]
            time.sleep(0.1)

    def finish(self, seconds: float) -> tuple[Finished, Finished]:
        """Wait for both machines."""
        end = time.monotonic() + seconds
        codes = [host.running.pop().wait(max(1.0, end - time.monotonic())) for host in self.hosts]
        first, second = (
            Finished(code, self.log(number).read_text(errors="replace")) for number, code in enumerate(codes)
        )
        return first, second


def why_not() -> str | None:
    """Why this machine cannot make namespaces; None where it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"no {', '.join(missing)} here"
    tried = subprocess.run(["unshare", "-Urnmu", "ip", "link", "add", "h0", "type", "veth"], capture_output=True)
    return None if tried.returncode == 0 else f"namespaces are not allowed here: {tried.stderr.decode().strip()}"


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Both machines, gone with all that runs on them afterwards."""
    alpha = Host("alpha", "10.77.0.1", "h0", _keeper("unshare", "-Urnmu"))
    beta = Host("beta", "10.77.0.2", "h1", _keeper(*alpha.inside("unshare", "-nmu")))
    folder = Path(tempfile.mkdtemp(prefix="two-hosts-"))
    try:
        alpha.do("ip", "link", "add", "h0", "type", "veth", "peer", "name", "h1")
        alpha.do("ip", "link", "set", "h1", "netns", str(beta.keeper.pid))
        for host in (alpha, beta):
            host.do("hostname", host.name)
            host.do("ip", "addr", "add", f"{host.address}/24", "dev", host.cable)
            for link in (host.cable, "lo"):
                host.do("ip", "link", "set", link, "up")
        yield TwoHosts((alpha, beta), folder)
    finally:
        for host in (beta, alpha):
            host.stop()
            host.keeper.kill()
            host.keeper.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _keeper(*prefix: str) -> subprocess.Popen[bytes]:
    """A process that does nothing but keep namespaces; it says when they are there."""
    script = "echo there; exec sleep infinity"
    started = subprocess.Popen([*prefix, "sh", "-c", script], stdout=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stdout.readline() == b"there\n"
    return started
