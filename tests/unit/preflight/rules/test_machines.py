"""What differs between processes is found and told with who has what; like ranks are shown together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hftune.arguments.entry import parse_arguments
from hftune.distributed.nodes import host
from hftune.preflight.check_run import check_machines
from hftune.preflight.facts import World
from hftune.preflight.rules import refused
from hftune.preflight.rules.machines import (
    content_mark,
    differences,
    file_marks,
    process_facts,
    shown,
)


def facts(rank: int, host: str = "a", **changes: Any) -> dict[str, Any]:
    values = {
        "rank": rank,
        "host": host,
        "local_rank": rank % 2,
        "device": "NVIDIA H100 80GB HBM3",
        "memory": 79 * 2**30,
        "backend": "nccl",
        "versions": {"python": "3.11.9", "torch": "2.13.0+cu130", "trl": "1.16.0"},
        "code": {"hftune's files": "abcdef"},
        "arguments": {"--learning_rate": "1111", "--seed": "2222"},
        "files": {"--train_file_dir": "3333"},
        "deepspeed": {"DeepSpeed config": "4444"},
        "world": {"processes": 4},
    }
    return values | {name: {**values[name], **change} if isinstance(change, dict) else change
                     for name, change in changes.items()}  # fmt: skip


def test_alike() -> None:
    everyone = [facts(0), facts(1)]
    assert not list(differences(everyone))


def test_each_kind_of_difference_is_an_error() -> None:
    everyone = [
        facts(0),
        facts(1),
        facts(2, "b", versions={"trl": "1.15.2", "bitsandbytes": "0.50.2"}, arguments={"--seed": "9"}),
        facts(3, "b", versions={"trl": "1.15.2", "bitsandbytes": "0.50.2"}, code={"hftune's files": "fedcba"}),
    ]
    found = [problem.cause.splitlines() for problem in differences(everyone)]
    assert [lines[0] for lines in found] == [
        "the processes have different versions:",
        "the processes have different hftune:",
        "the processes have different arguments:",
    ]
    assert found[0][1:] == [
        "    bitsandbytes: none on a (rank 0-1); 0.50.2 on b (rank 2-3)",
        "    trl: 1.16.0 on a (rank 0-1); 1.15.2 on b (rank 2-3)",
    ]
    assert found[1][1] == "    hftune's files: abcdef on a, b (rank 0-2); fedcba on b (rank 3)"
    assert found[2][1] == "    --seed: 2222 on a, b (rank 0-1,3); 9 on b (rank 2)"


def test_files_and_configs() -> None:
    everyone = [facts(0), facts(1, files={"--train_file_dir": "5"}, deepspeed={"DeepSpeed config": "6"}, world={})]
    assert [problem.cause.splitlines()[0] for problem in differences(everyone)] == [
        "the processes have different files:",
        "the processes have different DeepSpeed configs:",
    ]


def test_patch_levels_and_devices_may_differ() -> None:
    other = facts(1, "b", versions={"python": "3.11.4", "torch": "2.13.1+cu130"}, device="NVIDIA A100")
    assert not list(differences([facts(0), other]))


def test_who_takes_part() -> None:
    everyone = [facts(rank, "ab"[rank // 2]) for rank in range(4)]
    assert shown(everyone) == [
        "4 processes on 2 machine(s)",
        "  rank 0-1 on a: NVIDIA H100 80GB HBM3, 79 GiB, nccl, torch 2.13.0+cu130, code abcdef",
        "  rank 2-3 on b: NVIDIA H100 80GB HBM3, 79 GiB, nccl, torch 2.13.0+cu130, code abcdef",
        "  rank 0 has python 3.11.9, torch 2.13.0+cu130, trl 1.16.0",
    ]
    about = "NVIDIA H100 80GB HBM3, 79 GiB, nccl, torch 2.13.0+cu130, code abcdef"
    assert shown(everyone[:2]) == [f"2 processes on a: {about}"]


def test_what_a_process_says_of_itself() -> None:
    found = process_facts(parse_arguments("sft", ["--output_dir", "o"]))
    assert found["host"] == host() and found["versions"]["torch"] == torch.__version__
    assert len(found["code"]["hftune's files"]) == 16


class Arguments:
    """A group of arguments."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


def test_a_run_of_one_process_asks_none() -> None:
    args = Arguments(save_on_each_node=False, zero_stage=0)
    for everyone, count in (((), 0), ((facts(0), facts(1, versions={"trl": "1.15.2"})), 1)):
        run: Any = Arguments(world=World(2, on_cpu=True, everyone=everyone), training_args=args)
        assert len([*check_machines(run)]) == count


def test_saving_on_each_machine_under_zero3() -> None:
    found = [list(refused("machines", Arguments(save_on_each_node=True, zero_stage=stage))) for stage in (2, 3)]
    assert [len(problems) for problems in found] == [0, 1] and "only the first machine" in found[1][0].cause


def test_files_are_compared_by_contents(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text("x" * 300_000)
    marks = [file_marks((Arguments(train_file_dir=str(tmp_path / name), output_dir=name),)) for name in ("one", "two")]
    assert marks[0] == marks[1] and list(marks[0]) == ["--train_file_dir"], "another path is no difference"
    before = content_mark(tmp_path / "two")
    with (tmp_path / "two" / "rows.jsonl").open("a") as stream:
        stream.write("y")
    assert content_mark(tmp_path / "two") != before
    (tmp_path / "two" / ".hidden").write_text("not data")
    again = content_mark(tmp_path / "two")
    (tmp_path / "two" / ".hidden").unlink()
    assert content_mark(tmp_path / "two") == again
