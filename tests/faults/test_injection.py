"""A fault at every change of the disk that a command makes: afterwards there is the old result or the new one, whole.

`tests/faults/injection/fail_at.c` counts calls (write, fsync, rename, mkdir, new files, and for kills also removals) on
files below a folder, and fails or kills at the N-th. After each fault: the target is as it was, or is the new result to
the byte; files of other people are untouched; what was said is one message without a traceback; and the same command
started again succeeds and leaves nothing else.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hftune.digests import digest
from tests.conftest import ROOT, without_launcher
from tests.faults.injection.server import KILL, Injector
from tests.unit.checkpoints.zero_files import write as write_zero

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="builds a library that is preloaded"),
    pytest.mark.timeout(3000),
]

FAULTS = {
    "killed": (KILL, False),
    "full disk": (errno.ENOSPC, True),
    "one write without room": (errno.ENOSPC, False),
    "faulty disk": (errno.EIO, False),
    "read-only from here on": (errno.EROFS, True),
}
VICTIM = "thesis.tex"


@dataclass
class Command:
    """What is run, and what it makes.

    Attributes:
        argv: With `{out}` for the target.
        overwrite: What is added where a finished result stands at the target.
        file: The target is a file.
        changing: Files of the result that differ from run to run: times, random names.
    """

    argv: list[str]
    overwrite: list[str] = field(default_factory=lambda: ["--overwrite_output_dir"])
    file: bool = False
    changing: tuple[str, ...] = ("hftune.json",)

    def at(self, out: Path, *, again: bool = False) -> list[str]:
        """The command line for a target."""
        return [word.replace("{out}", str(out)) for word in self.argv] + (self.overwrite if again else [])


@pytest.fixture(scope="session")
def injector(workspace: Path) -> Iterator[Injector]:
    folder = workspace / "injector"
    folder.mkdir()
    environment = without_launcher(dict(os.environ)) | {
        "HFTUNE_CACHE": str(workspace / "cache"),
        "HF_HOME": str(workspace / "hf"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "CUDA_VISIBLE_DEVICES": "",
    }
    found = Injector(folder, environment)
    yield found
    found.stop()


@pytest.fixture(scope="session")
def commands(tiny_model: Path, tiny_data: Path, tiny_adapter: Path, workspace: Path) -> dict[str, Command]:
    model, data, adapter = str(tiny_model), str(tiny_data), str(tiny_adapter)
    checkpoint = str(write_zero(workspace / "zero", 2, 2))
    out = ["--output_dir", "{out}"]
    quick = ["--max_steps", "1", "--use_cpu", "True", "--report_to", "none", "--per_device_train_batch_size", "2"]
    of = ["--model_name_or_path", model]
    return {
        "merge": Command(["merge_peft_adapter.py", "--peft_model_path", adapter, *out, "--verify", "False"]),
        "export vllm": Command(["hftune", "export", "vllm", *of, *out, "--verify", "False"]),
        "export gguf": Command(["hftune", "export", "gguf", *of, *out, "--verify", "False"]),
        "consolidate": Command(["hftune", "consolidate", "--checkpoint", checkpoint, *out]),
        "vocab add": Command(["hftune", "vocab", "add", *of, "--add_tokens", "<ref>", *out]),
        "tokenize": Command(["hftune", "tokenize", "run_sft", *of, "--train_file_dir", f"{data}/sft", *out]),
        "sft": Command(
            ["run_sft.py", *of, "--train_file_dir", f"{data}/sft", *out, *quick],
            changing=(*_OF_A_RUN, "hftune.json"),
        ),
    }


@pytest.fixture(scope="session")
def tiny_adapter(tiny_model: Path, workspace: Path) -> Path:
    """A LoRA adapter of the tiny model that changes something."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(1)
    config = LoraConfig(target_modules=["q_proj", "v_proj"], r=2, task_type="CAUSAL_LM", init_lora_weights=False)
    folder = workspace / "tiny-adapter"
    get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return folder


_OF_A_RUN = (
    *("trainer_state.json", "training_args.bin", "progress.jsonl", "hftune_checkpoint.json", "README.md"),
    *("run.log", "run-rank1.log"),
)
NAMES = ("merge", "export vllm", "export gguf", "consolidate", "vocab add", "tokenize", "sft")


def contents(place: Path, changing: tuple[str, ...] = ()) -> dict[str, str]:
    """Digests of all files of a folder, or of a file, but those that change from run to run; empty for nothing."""
    if place.is_file():
        return {"": digest(place)}
    files = (file for file in sorted(place.rglob("*")) if file.is_file() and file.name not in changing)
    named = {str(file.relative_to(place)): file for file in files}
    # Checkpoints have their own tests; in the work folders inside an output folder lies what is not published yet.
    return {name: digest(file) for name, file in named.items() if not name.startswith((".", "checkpoint-"))}


def says_complete(out: Path) -> bool:
    """Whether the manifest at a target says that it is a finished result."""
    manifest = out / "hftune.json"
    return manifest.is_file() and json.loads(manifest.read_text())["status"] == "complete"


def whole(out: Path, reference: dict[str, str], command: Command) -> bool:
    """Whether a finished result is at the target, to the byte."""
    return says_complete(out) and contents(out, command.changing) == reference


class Bench:
    """A parent folder with somebody's file in it, and a target that is free or holds an older result."""

    def __init__(self, injector: Injector, command: Command, folder: Path) -> None:
        self.injector, self.command, self.folder = injector, command, folder
        code, calls = injector.run(command.at(folder / "reference"), folder)
        assert code == 0, injector.said
        self.reference = contents(folder / "reference", command.changing)
        assert calls > 10 and self.reference

    def calls(self, how: int, *, old: bool) -> int:
        """How many calls can fail that way: removals are places to be killed at, and nothing else."""
        out = self.folder / "counted"
        if old:
            shutil.copytree(self.folder / "reference", out)
        code, calls = self.injector.run(self.command.at(out, again=old), self.folder, 0, min(how, 0))
        assert code == 0, self.injector.said
        shutil.rmtree(out)
        return calls

    def attempt(self, number: int, how: int, lasting: bool, *, old: bool) -> str:
        """One fault at the N-th call; "old", "new" or "none" for what is at the target afterwards."""
        room = self.folder / f"room{number}"
        room.mkdir()
        (room / VICTIM).write_text("years of work")
        out = room / "out"
        if old:
            shutil.copytree(self.folder / "reference", out)  # times differ, digests do not
        before = contents(out)
        code, _ = self.injector.run(self.command.at(out, again=old), room, number, how, lasting)
        said = self.injector.said
        assert (room / VICTIM).read_text() == "years of work"
        strangers = [entry.name for entry in room.iterdir() if entry.name not in (VICTIM, "out", ".out.partial")]
        assert not strangers, strangers
        assert how == KILL or ("Traceback" not in said and code in (0, 2)), f"call {number}: {code}\n{said[-3000:]}"
        if how != KILL and code == 2:
            assert "error:" in said and "to do:" in said, said[-2000:]
        state = "none" if not contents(out) else "old" if before and contents(out) == before else "new"
        if state == "new" and (not self.command.argv[0].startswith("run_") or says_complete(out)):
            assert whole(out, self.reference, self.command), f"call {number}: half a result\n{said[-3000:]}"
        assert not (old and state == "none") or (room / ".out.partial" / "replaced").is_dir(), said[-3000:]
        self.again(out, number)
        shutil.rmtree(room)
        return state

    def again(self, out: Path, number: int) -> None:
        """The same command, unharmed, ends with the whole result and nothing else."""
        code, _ = self.injector.run(self.command.at(out, again=True), out.parent)
        assert code == 0, f"after call {number}:\n{self.injector.said[-3000:]}"
        assert whole(out, self.reference, self.command), f"after call {number}"
        assert sorted(entry.name for entry in out.parent.iterdir()) == ["out", VICTIM]


@pytest.fixture
def bench(injector: Injector, commands: dict[str, Command], tmp_path: Path) -> Callable[[str], Bench]:
    return lambda name: Bench(injector, commands[name], tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_some_faults(bench: Callable[[str], Bench], name: str) -> None:
    """A few of each kind, the first, the last, and where results are exchanged: for every command, in seconds."""
    bench = bench(name)
    points = random.Random(name)
    for fault, (how, lasting) in FAULTS.items():
        old = fault in ("killed", "full disk")
        calls = bench.calls(how, old=old)
        for number in {points.randint(1, calls), calls - points.randint(0, 8)}:
            bench.attempt(number, how, lasting, old=old)


@pytest.mark.slow
@pytest.mark.parametrize("old", [False, True], ids=["free", "over an old result"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_fault_at_every_change_of_the_disk(bench: Callable[[str], Bench], name: str, fault: str, old: bool) -> None:
    bench = bench(name)
    calls = bench.calls(FAULTS[fault][0], old=old)
    seen = {bench.attempt(number, *FAULTS[fault], old=old) for number in range(1, calls + 1)}
    assert "new" in seen or fault != "killed"
    print(f"FAULTS {name} | {fault} | {'old' if old else 'free'} | {calls} | {sorted(seen)}")
