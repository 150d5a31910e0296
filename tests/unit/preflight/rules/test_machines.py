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
from hftune.preflight.rules.machines import argument_marks, content_mark, differences, process_facts, shown

ABOUT = "NVIDIA H100 80GB HBM3, 79 GiB, nccl, torch 2.13.0+cu130, code abcdef"


def facts(rank: int, host: str = "a", **changes: Any) -> dict[str, Any]:
    same = {"version of trl": "1.16", "hftune's files": "abcdef", "--seed": "2222", "--train_file_dir": "3333"}
    return {"rank": rank, "host": host, "local_rank": rank % 2, "about": ABOUT, "same": same | changes}


def test_each_difference_is_told_with_who_has_what() -> None:
    other = {"version of trl": "1.15", "version of bitsandbytes": "0.50"}
    everyone = [facts(0), facts(1), facts(2, "b", **other, **{"--seed": "9"}), facts(3, "b", **other)]
    assert not list(differences(everyone[:2]))
    (problem,) = differences(everyone)
    assert problem.cause.splitlines() == [
        "the processes differ in",
        "    version of trl: 1.16 on a (rank 0-1); 1.15 on b (rank 2-3)",
        "    --seed: 2222 on a, b (rank 0-1,3); 9 on b (rank 2)",
        "    version of bitsandbytes: none on a (rank 0-1); 0.50 on b (rank 2-3)",
    ]


def test_who_takes_part() -> None:
    everyone = [facts(rank, "ab"[rank // 2]) for rank in range(4)]
    assert shown(everyone) == [
        "4 processes on 2 machine(s)",
        f"  rank 0-1 on a: {ABOUT}",
        f"  rank 2-3 on b: {ABOUT}",
    ]


def test_what_a_process_says_of_itself() -> None:
    found = process_facts(parse_arguments("sft", ["--output_dir", "o"]))
    assert found["host"] == host() and f"torch {torch.__version__}" in found["about"]
    assert {"version of torch", "hftune's files", "DeepSpeed config", "processes", "--learning_rate"} <= {
        *found["same"]
    }
    assert found["same"]["version of torch"].count(".") == 1, "patch levels may differ"
    assert "--output_dir" not in found["same"]


class Arguments:
    """A group of arguments."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


def test_a_run_of_one_process_asks_none() -> None:
    args = Arguments(save_on_each_node=False, zero_stage=0)
    for everyone, count in (((), 0), ((facts(0), facts(1, **{"--seed": "9"})), 1)):
        run: Any = Arguments(world=World(2, on_cpu=True, everyone=everyone), training_args=args)
        assert len([*check_machines(run)]) == count


def test_saving_on_each_machine_under_zero3() -> None:
    found = [list(refused("machines", Arguments(save_on_each_node=True, zero_stage=stage))) for stage in (2, 3)]
    assert [len(problems) for problems in found] == [0, 1] and "only the first machine" in found[1][0].cause


def test_files_are_compared_by_contents(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text("x" * 300_000)
    one, two = (argument_marks((Arguments(train_file_dir=str(tmp_path / name)),)) for name in ("one", "two"))
    assert one == two == {"--train_file_dir": content_mark(tmp_path / "one")}, "another path is no difference"
    before = content_mark(tmp_path / "two")
    with (tmp_path / "two" / "rows.jsonl").open("a") as stream:
        stream.write("y")
    assert content_mark(tmp_path / "two") != before
    (tmp_path / "two" / ".hidden").write_text("not data")
    again = content_mark(tmp_path / "two")
    (tmp_path / "two" / ".hidden").unlink()
    assert content_mark(tmp_path / "two") == again
