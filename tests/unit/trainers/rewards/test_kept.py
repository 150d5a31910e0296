"""The file of rewards: what it says again, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.errors import ManifestError
from hftune.trainers.rewards.kept import KeptRewards, code_of, key_of, rows_of

KEY, OTHER = "a" * 32, "b" * 32


def test_numbers_come_back_to_the_bit(tmp_path: Path) -> None:
    KeptRewards(tmp_path / "kept").add({KEY: 0.1 + 0.2, OTHER: None}, "mine")
    found = KeptRewards(tmp_path / "kept")
    assert found[KEY] == 0.1 + 0.2 and found[OTHER] is None and KEY in found and "c" * 32 not in found
    assert (
        tmp_path / "kept" / "rewards-0.tsv"
    ).read_text() == f"\n{KEY}\t0.30000000000000004\tmine\n{OTHER}\tnan\tmine\n"


def test_what_a_killed_process_left_of_a_line_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "rewards-3.tsv"
    file.write_text(f"{KEY}\t1.5\tf\n{OTHER}\t2.")
    assert KeptRewards(tmp_path)[KEY] == 1.5 and OTHER not in KeptRewards(tmp_path)
    own = tmp_path / "rewards-0.tsv"
    own.write_text(f"\n{OTHER}\t2.")
    KeptRewards(tmp_path).add({KEY: 2.5}, "f")
    assert own.read_text().splitlines()[-1] == f"{KEY}\t2.5\tf"
    assert KeptRewards(tmp_path)[KEY] in (1.5, 2.5)


@pytest.mark.parametrize(
    "line", ["hello\n", f"{KEY}\tmany\tf\n", f"{KEY}\tinf\tf\n", f"{KEY[1:]}\t1.0\tf\n", "x" * 600]
)
def test_a_file_of_something_else_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "rewards-0.tsv").write_text(line)
    with pytest.raises(ManifestError, match="holds no rewards"):
        KeptRewards(tmp_path)


def test_a_key_depends_on_all_that_a_reward_does() -> None:
    keys = {
        key_of(*given)
        for given in [
            ("f", "p", "c", {"a": 1}), ("g", "p", "c", {"a": 1}), ("f", "q", "c", {"a": 1}), ("f", "p", "d", {"a": 1}),
            ("f", "p", "c", {"a": 2}), ("f", [{"role": "user", "content": "p"}], "c", {"a": 1}),
        ]
    }  # fmt: skip
    assert len(keys) == 6 and all(len(key) == 32 for key in keys)
    assert key_of("f", "p", "\ud800", {"b": 1, "a": 2}) == key_of("f", "p", "\ud800", {"a": 2, "b": 1})


def test_code_is_that_of_its_file(tmp_path: Path) -> None:
    from hftune.arguments.named_code import named_code

    file = tmp_path / "mine.py"
    texts = []
    for body in ("return [1.0]", "return [2.0]"):
        file.write_text(f"def f(**_):\n    {body}\n")
        texts.append(code_of(named_code(f"{file}:f", "--reward_funcs")))
    assert texts[0] != texts[1] and texts[0].startswith("f ")
    assert code_of(len) == "len "


def test_rows_have_the_columns_of_the_batch_alone() -> None:
    assert rows_of({"a": [1, 2], "b": "no", "c": [1], "d": print}, 2) == [{"a": 1}, {"a": 2}]
