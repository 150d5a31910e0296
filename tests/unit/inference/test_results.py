"""Parts: made once, resumed after a kill, made anew for another plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hftune.distributed import ranks
from hftune.inference.results import Line, parts_of

PLAN = {"models": ["a"]}


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    output, made = str(tmp_path / "out"), list[str]()

    def make(items: Sequence[str]) -> Iterator[Line]:
        if "c" in items and made == ["ab"]:
            made.append("killed")
            raise KeyboardInterrupt
        made.append("".join(items))
        yield from ({"name": name, "text": "é\udce9\n"} for name in items)

    with pytest.raises(KeyboardInterrupt), parts_of(output, PLAN) as parts:
        parts.made("letters", "abcde", 2, lambda: make)
    with parts_of(output, PLAN) as parts:
        lines = parts.made("letters", "abcde", 2, lambda: make)
        assert [line["name"] for line in lines] == list("abcde") and lines[0]["text"] == "é?\n"
        assert parts.made("letters", "abcde", 2, lambda: pytest.fail("nothing is missing")) == lines
    assert made == ["ab", "killed", "cd", "e"] and list(tmp_path.iterdir()) == []


def test_parts_of_another_plan_are_made_again(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    with pytest.raises(RuntimeError), parts_of(output, PLAN) as parts:
        parts.write("a-0", [{"of": 1}])
        raise RuntimeError
    with pytest.raises(RuntimeError), parts_of(output, PLAN) as parts:
        assert parts.has("a-0")
        raise RuntimeError
    with parts_of(output, {"models": ["b"]}) as parts:
        assert not parts.has("a-0")


def test_processes_share_them_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "rank", lambda: 1)
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    with parts_of(str(tmp_path / "out"), PLAN) as parts:
        parts.folder.mkdir()
        parts.write("a-1", [])
        monkeypatch.setattr(parts, "read", lambda name: [])
        parts.made("a", range(5), 1, lambda: lambda items: [])
        # Of 0, 2, 3 and 4 every second one.
        assert sorted(file.stem for file in parts.folder.glob("*.jsonl")) == ["a-1", "a-2", "a-4"]
