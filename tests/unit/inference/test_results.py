"""Parts: made once, resumed after a kill, made anew for another plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hftune.distributed import ranks
from hftune.errors import ManifestError
from hftune.inference.results import Line, parts_of

PLAN = {"models": ["a"]}


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    output, made = str(tmp_path / "out"), []

    def make(name: str) -> Iterator[Line]:
        if name == "c" and len(made) < 3:
            raise KeyboardInterrupt
        made.append(name)
        yield {"name": name, "text": "é\udce9\n"}
        yield {"name": name}

    with pytest.raises(KeyboardInterrupt), parts_of(output, PLAN) as parts:
        parts.make(["a", "b", "c"], lambda: make)
    assert made == ["a", "b"]
    made.append("killed")
    with parts_of(output, PLAN) as parts:
        assert parts.has("a") and not parts.has("c")
        parts.make(["a", "b", "c"], lambda: make)
        assert [line["name"] for line in parts.read(["c", "a"])] == ["c", "c", "a", "a"]
        assert parts.read(["a"])[0]["text"] == "é?\n"
    assert made == ["a", "b", "killed", "c"] and list(tmp_path.iterdir()) == []


def test_parts_of_another_plan_are_made_again(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    with pytest.raises(RuntimeError), parts_of(output, PLAN) as parts:
        parts.write("a", [{"of": 1}])
        raise RuntimeError
    with pytest.raises(RuntimeError), parts_of(output, PLAN) as parts:
        assert parts.has("a")
        raise RuntimeError
    with parts_of(output, {"models": ["b"]}) as parts:
        assert not parts.has("a")


def test_processes_share_them_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "rank", lambda: 1)
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    with parts_of(str(tmp_path / "out"), PLAN) as parts:
        parts.folder.mkdir()
        parts.write("b", [])
        parts.make(list("abcde"), lambda: lambda name: [])
        # Of a, c, d and e every second one.
        assert sorted(file.stem for file in parts.folder.glob("*.jsonl")) == ["b", "c", "e"]


def test_a_damaged_part_is_made_again(tmp_path: Path) -> None:
    with parts_of(str(tmp_path / "out"), PLAN) as parts:
        parts.write("a", [{"score": 0.5}, {"score": 1.0}])
        parts.write("empty", [])
        file = parts.folder / "a.jsonl"
        whole = file.read_bytes()
        assert parts.has("a") and parts.has("empty") and parts.read(["a", "empty"]) == [{"score": 0.5}, {"score": 1.0}]
        for place in range(len(whole)):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            assert not parts.has("a"), place
        for content in (b"", whole[:-1], whole[: whole.index(b"\n") + 1], whole + whole, whole * 2 + b"\n"):
            file.write_bytes(content)
            assert not parts.has("a")
        with pytest.raises(ManifestError, match="other contents"):
            parts.read(["a"])
        parts.make(["a", "empty"], lambda: lambda name: [{"score": name}])
        assert parts.read(["a", "empty"]) == [{"score": "a"}]
