"""What all tests share: a tiny model made on the spot, small data, and scripts run as a user runs them."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from hftune.tools.doctor.tiny import make_tokenizer
from tests.warm import WarmStarter

# A busy machine is no reason to fail: properties are checked, not their speed. The same examples each time, so that a
# commit is not refused for what an older one brought; `make test-all` draws new ones.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True)
hypothesis.settings.register_profile("fresh", deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HFTUNE_EXAMPLES", "same"))

ROOT = Path(__file__).parents[1]
NETGUARD = ROOT / "tests" / "netguard"

# Chosen before any library reads them: nothing may look for a hub, and every process gets one thread.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts jobs in the background with Ctrl-C ignored, nohup without SIGHUP, and hftune leaves that as it is.
# Tests of signals want both heard.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


_seen_modules = 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Whenever much was imported, keep it from the collections that Trainers ask for: half of a small run's time."""
    global _seen_modules
    if len(sys.modules) > _seen_modules + 100:
        gc.collect()  # what is garbage by now must not stay
        gc.freeze()
        _seen_modules = len(sys.modules)


@dataclass
class Finished:
    """A script that has ended."""

    code: int
    output: str

    def check(self) -> Finished:
        """Fail with the script's last words unless it succeeded."""
        assert self.code == 0, self.output[-6000:]
        return self


@pytest.fixture(autouse=True)
def typed_as_scripts() -> None:
    """A command of `hftune` that ran in this process has left its mark: messages would name subcommands."""
    os.environ.pop("HFTUNE_TYPED", None)


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the whole session, also for caches and the network guard's log."""
    folder = tmp_path_factory.mktemp("hftune")
    os.environ["HFTUNE_CACHE"] = str(folder / "cache")
    return folder


@pytest.fixture(scope="session")
def netguard_log(workspace: Path) -> Path:
    """Where scripts that reach for the network leave a line. Empty at the end, or the session fails."""
    return workspace / "netguard.log"


@pytest.fixture(scope="session")
def starter() -> Iterator[WarmStarter]:
    """Forks scripts from a process that has all imports; it starts with the first of them."""
    found = WarmStarter()
    yield found
    found.stop()


@pytest.fixture(scope="session")
def run(workspace: Path, netguard_log: Path, starter: WarmStarter) -> Iterator[Callable[..., Finished]]:
    """Run `run_sft.py ...` under `launcher` with the network cut off.

    `bare`: on a PATH without a compiler. `warm`: without the launcher, forked from a process that has all imports
    (`tests/warm.py`), for tests whose point is not how a run starts. At the end of the session nothing must have
    reached for the network.
    """

    def launch(
        script: str,
        *flags: str,
        launcher: str = "python",
        timeout: int = 600,
        bare: bool = False,
        warm: bool = False,
        gpu: bool = False,
    ) -> Finished:
        environment = without_launcher({name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"})
        environment |= {
            "HF_HOME": str(workspace / "hf"),
            "HFTUNE_NETGUARD_LOG": str(netguard_log),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(NETGUARD), str(ROOT), os.environ.get("PYTHONPATH")])),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0") if gpu else "",
        }
        if bare:
            environment["PATH"] = str(Path(sys.executable).parent)
        if warm:
            processes = 1 if launcher == "python" else int(launcher.split()[-1])
            return Finished(*starter.run(script, flags, processes, environment, timeout))
        if launcher == "python":
            environment["OMP_NUM_THREADS"] = "2"
        finished = subprocess.run(
            [*launcher.split(), *(["--master_port", str(free_port())] if launcher != "python" else []), script, *flags],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        return Finished(finished.returncode, finished.stdout)

    yield launch
    attempts = netguard_log.read_text() if netguard_log.exists() else ""
    assert not attempts, attempts


def logged(folder: Path, name: str = "loss") -> list[float]:
    """A figure of a run, in the order in which it was logged."""
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [entry[name] for entry in history if name in entry]


def without_launcher(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that no launcher has started: a test before may have become a world of one."""
    launched = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CROSS_RANK")
    return {name: value for name, value in variables.items() if name not in launched}


def free_port() -> int:
    """A port for rendezvous: launchers default to one number, which another run on the machine may hold."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def tiny_model(workspace: Path) -> Path:
    """A random Llama of two layers with a tokenizer and a ChatML template, as a folder."""
    import torch
    from transformers import LlamaForCausalLM

    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    folder = workspace / "tiny-llama"
    LlamaForCausalLM(tiny_config(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_teacher(workspace: Path) -> Path:
    """As `tiny_model`, with other weights and a wider head."""
    import torch
    from transformers import LlamaForCausalLM

    tokenizer = tiny_tokenizer()
    torch.manual_seed(1)
    folder = workspace / "tiny-teacher"
    LlamaForCausalLM(tiny_config(tokenizer, hidden_size=96)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_config(tokenizer: Any, **changes: Any) -> Any:
    """The config of a Llama of two layers for a tokenizer."""
    from transformers import LlamaConfig

    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    tokens = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return LlamaConfig(**{**sizes, **tokens, "tie_word_embeddings": True, "initializer_range": 0.2, **changes})


def tiny_tokenizer():
    """Byte-level BPE with ChatML; `<|im_end|>` ends a turn and a text."""
    return make_tokenizer([turn["content"] for record in CHATS for turn in record["messages"]])


_FACTS = [(f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}.") for a in range(2, 8) for b in range(3, 7)]
CHATS = [
    {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
    for question, answer in _FACTS
]


@pytest.fixture(scope="session")
def tiny_data(workspace: Path) -> Path:
    """Small records of every stage, training and held out: `pt`, `sft`, `pairs` and `prompts` below one folder."""
    folder = workspace / "data"
    pairs = [
        {
            "conversations": [{"from": "human", "value": question}],
            "chosen": answer,
            "rejected": f"Great question! Well, {question.lower()} Who knows.",
        }
        for question, answer in _FACTS
    ]
    records = {"sft": CHATS, "pairs": pairs, "prompts": [{"prompt": question} for question, _ in _FACTS]}
    for name, values in records.items():
        _write_jsonl(folder / name / "train.jsonl", values[4:])
        _write_jsonl(folder / f"{name}_eval" / "eval.jsonl", values[:4])
    for name, part in (("pt", _FACTS[4:]), ("pt_eval", _FACTS[:4])):
        (folder / name).mkdir(parents=True)
        text = "\n".join(f"{question} {answer} " * 6 for question, answer in part)
        (folder / name / "text.txt").write_text(text, encoding="utf-8")
    return folder


def _write_jsonl(file: Path, records: list[dict]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[pytest.TestReport]:
    """Halves of characters, of which hostile data are made, are spelt out: pytest-xdist cannot send them."""
    report = yield
    report.sections = [tuple(_sendable(part) for part in section) for section in report.sections]
    if report.longrepr is not None and not report.passed and isinstance(text := str(report.longrepr), str):
        report.longrepr = report.longrepr if text.isprintable() or _sendable(text) == text else _sendable(text)
    return report


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
