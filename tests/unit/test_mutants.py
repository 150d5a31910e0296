"""Faults for `make mutants`: drawn alike by the same seed, of files that exist; none is left out without a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mutmut", reason="for developers: the extra `dev`")

from tests.mutants import faults, reach, trials
from tests.mutants.reach import Reach


def test_every_pattern_names_files_and_no_file_counts_twice() -> None:
    table = faults.groups()
    files = [file for group in table.values() for file in group["files"]]
    assert len(files) == len({*files}) > 90 and all(group["files"] for group in table.values())
    assert all((faults.ROOT / pattern).parent.is_dir() for pattern in files)


@pytest.mark.parametrize("row", faults.equivalent(), ids=lambda row: f"{row['file']}: {row['after']}"[:90])
def test_a_listed_fault_is_one_of_the_file_as_it_is(row: dict[str, str]) -> None:
    text = " ".join(line.strip() for line in (faults.ROOT / row["file"]).read_text().splitlines())
    assert row["before"] in text, "the line has changed: is the reason still one?"
    assert row["before"] != row["after"] and len(row["why"]) > 10


def test_a_seed_draws_the_same_faults_and_another_seed_others() -> None:
    files = ["hftune/data/packing/bins.py", "hftune/data/packing/settings.py"]
    one, again, other = (faults.draw(files, 12, seed) for seed in (1, 1, 2))
    assert one == again and len(one) == 12 and {fault.after for fault in one} != {fault.after for fault in other}
    for fault in one:
        compile(fault.source, fault.file, "exec")
        assert fault.source != (faults.ROOT / fault.file).read_text() and fault.before != fault.after


def test_what_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Words for people, types, invariants and what no test could miss; a condition is turned round."""
    (tmp_path / "a.py").write_text(
        'def f(x: int | None = None) -> int:\n    """Words."""\n    assert x != 1\n    if x:\n'
        '        notice("no words")\n        raise ValueError(f"{x + 1}")\n    x.open(encoding="utf-8")\n'
        "    return list(zip(x, strict=True))\n"
    )
    monkeypatch.setattr(faults, "ROOT", tmp_path)
    assert {(fault.before, fault.after) for fault in faults.draw(["a.py"], 20, 0)} == {
        ("if x:", "if not (x):"),
        ("return list(zip(x, strict=True))", "return list(zip(strict=True))"),
    }


def test_tests_are_chosen_by_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(**lines: list[str]) -> dict[str, dict[str, list[str]]]:
        return {"hftune/a.py": lines}

    source = "def f(x):\n    if x:\n        return 1\n\n    y = (\n        x\n        + 1\n    )\n    return y\n"
    fault = faults.Fault("hftune/a.py", 7, "", "", source, True)
    before = ["b::1"]
    reached = {
        "tests/unit/test_b.py": Reach("", {"b::1": 0.1, "b::2": 0.2}, at(**{"3": before, "5": ["b::2"], "9": before})),
        "tests/unit/test_e.py": Reach("", {"e::1": 0.1}, at(**{"2": ["e::1"], "3": ["e::1"]})),
        "tests/unit/test_a.py": Reach("", {"a::1": 0.3}, at(**{"7": ["tests/unit/test_a.py"]})),
        "tests/unit/test_c.py": Reach("", {"c::1": 0.1}, {"hftune/other.py": {"7": ["c::1"]}}),
        "tests/unit/test_d.py": Reach("", {"d::1": 99.0}, at(**{"7": ["d::1"]})),
    }
    # That of the same name first, then the one that began the statement over lines 5 to 8; no more than time allows.
    assert trials.chosen(fault, reached) == (["a::1", "b::2"], 0.5)
    # What an import executes is met where its name stands, in whichever file.
    source = "LEAST = 3\n\n\ndef f(x=1):\n    return x\n\n\ny = f() + LEAST\n"
    monkeypatch.setattr(trials, "_core_lines", lambda: {"hftune/other.py": [*[""] * 6, "z = a.LEAST"]})
    reached["tests/unit/test_a.py"] = Reach("", {"a::1": 0.3, "a::2": 0.1}, at(**{"8": ["a::1"], "9": ["a::1"]}))
    constant, default = (faults.Fault("hftune/a.py", line, "", "", source, False) for line in (1, 4))
    # All tests of a file that reaches its own file, whose name comes first, or such a line.
    assert trials.chosen(constant, reached)[0] == ["a::1", "a::2", "c::1", "e::1", "b::1", "b::2"]
    assert trials.chosen(default, reached)[0] == ["a::1", "a::2", "e::1", "b::1", "b::2"]


def test_what_tests_reach_is_noted_again_where_lines_have_other_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "ROOT", tmp_path)
    (tmp_path / "core.py").write_text("a = 1\n")
    noted = Reach("", {}, {"core.py": {"1": ["t"]}}, {"core.py": reach.digest_of("core.py")})
    assert not noted.is_stale
    (tmp_path / "core.py").write_text("\na = 1\n")
    assert noted.is_stale
