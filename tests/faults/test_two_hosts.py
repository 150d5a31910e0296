"""Training across two machines (network namespaces joined by a virtual cable): files shared or not, deaths, signals."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.architectures import make_model
from tests.conftest import Finished, free_port, logged
from tests.faults.test_watchdog import messages
from tests.faults.two_hosts import TwoHosts, two_hosts, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]
SCRIPT = "tests/faults/hanging_sft.py"  # run_sft.py or run_pt.py, with a harm where one is named
AUTO = ("--resume_from_checkpoint", "auto")


@pytest.fixture
def machines() -> Iterator[TwoHosts]:
    with two_hosts() as found:
        yield found


@pytest.fixture(scope="session")
def flags(tiny_model: Path, tiny_data: Path) -> Callable[..., list[str]]:
    """What is the same wherever a stage runs."""

    def of(stage: str, output: Path, zero: str, *more: str) -> list[str]:
        return [
            *("--model_name_or_path", str(tiny_model), "--train_file_dir", str(tiny_data / stage)),
            *("--output_dir", str(output), "--per_device_train_batch_size", "2", "--logging_steps", "1"),
            *("--report_to", "none", "--gradient_checkpointing", "False", "--learning_rate", "1e-3"),
            *("--lr_scheduler_type", "constant", "--use_cpu", "True", "--deepspeed", f"ds_configs/{zero}.json"),
            *(("--block_size", "32") if stage == "pt" else ()),
            *more,
        ]

    return of


@pytest.fixture
def start(machines: TwoHosts, flags: Callable, workspace: Path) -> Callable[..., None]:
    """Start a stage on both machines: `start("pt", output, "zero2", "--max_steps", "6")`."""

    def go(stage: str, *arguments: str | Path, harm: str = "", launcher: str = "torchrun") -> None:
        more = {"HFTUNE_CACHE": str(workspace / "cache"), "STAGE": stage, "HARM": harm}
        machines.run(free_port(), [SCRIPT, *flags(stage, *arguments)], more, launcher=launcher)

    return go


@pytest.fixture
def here(run: Callable, flags: Callable) -> Callable[..., Finished]:
    """The same on this machine, in so many processes."""

    def go(processes: int, stage: str, *arguments: str | Path) -> Finished:
        return run(f"run_{stage}.py", *flags(stage, *arguments), launcher=f"forked {processes}", warm=True)

    return go


def cut_off(folder: Path) -> None:
    """Leave a finished run as one that was cut off before it said so."""
    manifest = json.loads((folder / "hftune.json").read_text())
    (folder / "hftune.json").write_text(json.dumps(manifest | {"status": "running"}))


def both(machines: TwoHosts) -> Finished:
    """What the first machine said, once both have succeeded."""
    first, second = machines.finish(200)
    second.check()
    return first.check()


@pytest.mark.parametrize("stage, zero, launcher", [("pt", "zero2", "torchrun"), ("sft", "zero3", "deepspeed")])
def test_two_machines_train_as_one(
    machines: TwoHosts, start: Callable, here: Callable, tmp_path: Path, stage: str, zero: str, launcher: str
) -> None:
    few = ("--max_steps", "6", "--save_strategy", "no")
    start(stage, tmp_path / "out", zero, *few, launcher=launcher)
    said = both(machines).output
    assert re.search(r"2 processes on 2 machine\(s\)", said), said
    for number, name in enumerate(("alpha", "beta")):
        assert re.search(rf"rank {number} on {name}: CPU, \d+ thread\(s\), gloo", said), said
    assert "machine(s)" not in machines.log(1).read_text(), "it is said once"
    here(2, stage, tmp_path / "here", zero, *few).check()
    assert logged(tmp_path / "out") == pytest.approx(logged(tmp_path / "here"), abs=1e-5)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("zero", ["zero2", "zero3"])
def test_machines_that_share_no_files(
    machines: TwoHosts, start: Callable, here: Callable, tmp_path: Path, zero: str
) -> None:
    """Each keeps what it needs: the pair goes on by itself, and one machine with both folders goes on alone."""
    out = tmp_path / "out"
    alpha, beta = machines.unshare(out)
    start("sft", out, zero, "--max_steps", "4", "--save_steps", "2", "--save_total_limit", "1")
    said = both(machines).output
    assert "is not shared between the machines" in said and "result are on alpha" in said
    assert [folder.name for folder in sorted(beta.glob("checkpoint-*"))] == ["checkpoint-4"], "old ones go there, too"
    pieces = {file.name for file in (beta / "checkpoint-4" / "global_step4").glob("*_optim_states.pt")}
    assert len(pieces) == 1 and "rank_1_mp" in pieces.pop(), "its own"
    assert (alpha / "model.safetensors").is_file() and not list(beta.rglob("*.safetensors"))
    cut_off(alpha)

    steps = ("--max_steps", "7", "--save_strategy", "no")
    start("sft", out, zero, *steps, *AUTO)
    assert "resuming from" in both(machines).output
    here(2, "sft", tmp_path / "here", zero, *steps).check()
    expected = logged(tmp_path / "here")
    assert logged(alpha) == pytest.approx(expected, abs=1e-5)

    from_alpha = ("--resume_from_checkpoint", str(alpha / "checkpoint-4"))
    refused = here(1, "sft", tmp_path / "alone", zero, *steps, *from_alpha)
    assert refused.code == 2 and "of 1 of the 2 processes" in refused.output and "rsync" in refused.output
    for file in (beta / "checkpoint-4" / "global_step4").iterdir():  # what rsync --ignore-existing does
        if not (alpha / "checkpoint-4" / "global_step4" / file.name).exists():
            file.rename(alpha / "checkpoint-4" / "global_step4" / file.name)
    here(1, "sft", tmp_path / "alone", zero, *steps, *from_alpha).check()
    assert logged(tmp_path / "alone") == pytest.approx(expected, abs=1e-4)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("size", "architecture", "zero", "processes"),
    [
        ("--sequence_parallel_size", "llama", "zero3", 1),
        ("--tensor_parallel_size", "llama", "zero2", 1),
        ("--expert_parallel_size", "mixtral", "zero2", 2),
    ],
)
def test_machines_that_share_a_model_and_no_files(
    machines: TwoHosts,
    start: Callable,
    here: Callable,
    tmp_path: Path,
    size: str,
    architecture: str,
    zero: str,
    processes: int,
) -> None:
    """A process on each works on the same rows, or for the other's tokens; the pair goes on from its own pieces.

    Args:
        processes: That train on as many rows a step without sharing.
    """
    out, model = tmp_path / "out", make_model(architecture, tmp_path / "model")
    alpha, beta = machines.unshare(out)
    both_of = ("--model_name_or_path", str(model), "--packing", "True", "--max_length", "96")
    both_of += ("--router_aux_loss_coef", "0") if architecture == "mixtral" else ()
    start("sft", out, zero, "--max_steps", "4", "--save_steps", "4", *both_of, size, "2")
    assert "is not shared between the machines" in both(machines).output
    assert (alpha / "model.safetensors").is_file() and not list(beta.rglob("*.safetensors"))
    cut_off(alpha)
    if size == "--tensor_parallel_size":  # DeepSpeed wants all parts at hand; without them the run says what to copy
        for there, other in ((alpha, beta), (beta, alpha)):
            for file in other.glob("checkpoint-4/global_step4/*"):
                if not (there / file.relative_to(other)).exists():
                    shutil.copy(file, there / file.relative_to(other))

    steps = ("--max_steps", "6", "--save_strategy", "no", *both_of)
    start("sft", out, zero, *steps, size, "2", *AUTO)
    assert "resuming from" in both(machines).output
    here(processes, "sft", tmp_path / "here", zero, *steps).check()
    assert logged(alpha) == pytest.approx(logged(tmp_path / "here"), abs=1e-4)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("gone, how", [(1, "killed"), (1, "cut off"), (0, "killed")])
def test_a_machine_that_is_gone(
    machines: TwoHosts, start: Callable, here: Callable, tmp_path: Path, gone: int, how: str
) -> None:
    """The other one says so within a minute, and goes on alone."""
    out = tmp_path / "out"
    start("sft", out, "zero2", "--max_steps", "100000", "--save_steps", "2", "--save_total_limit", "2")
    machines.wait_for("grad norm", 0, 120)
    time.sleep(2)
    began = time.monotonic()
    lost, left = machines.hosts[gone], machines.hosts[1 - gone]
    if how == "killed":
        lost.stop()
    else:
        lost.do("ip", "link", "set", lost.cable, "down")
    while left.running[0].poll() is None and time.monotonic() - began < 90:
        time.sleep(0.2)
    seconds = time.monotonic() - began
    lost.stop()
    said = machines.finish(60)[1 - gone]
    (message,) = messages(said.output)
    print(f"GONE {gone} {how}: {seconds:.1f} s\n{message}")
    assert seconds < 60 and said.code != 0
    assert re.search(rf"error: lost rank {gone} on {lost.name}: ended without a word, last heard \d+ s before", message)

    newest = max(int(folder.name.split("-")[1]) for folder in out.glob("checkpoint-*"))
    more = ("--max_steps", str(newest + 2), "--save_strategy", "no")
    assert f"resuming from {out}/checkpoint-" in here(1, "sft", out, "zero2", *more, *AUTO).check().output


@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_told_to_stop_on_one_machine(
    machines: TwoHosts, start: Callable, here: Callable, tmp_path: Path, launcher: str
) -> None:
    """SIGTERM to beta's process, as SLURM's --signal sends it: both save and end with 75; one machine goes on."""
    out, steps = tmp_path / "out", ("--max_steps", "7", "--save_steps", "1000")
    start("sft", out, "zero2", *steps, harm="stop", launcher=launcher)
    first, second = machines.finish(150)
    assert "SIGTERM: saving a checkpoint at step 5 and stopping" in first.output
    for said in (first, second):
        # torchrun tells the code of its process, and ends with 1 itself.
        assert re.search(r"exitcode +: 75", said.output) if launcher == "torchrun" else said.code == 75, said.output
        assert not messages(said.output)
    here(1, "sft", out, "zero2", *steps, *AUTO).check()
    here(2, "sft", tmp_path / "here", "zero2", *steps).check()
    assert logged(out) == pytest.approx(logged(tmp_path / "here"), abs=1e-4)
