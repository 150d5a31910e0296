"""Digests find what has changed, and say nothing of what has not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import xxhash

from hftune import digests
from hftune.digests import Damaged, check_contents, contents, digest, read_text, sealed, unsealed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "sub" / "b").write_bytes(b"two")
    return tmp_path


def test_contents_are_sizes_and_digests_by_name(folder: Path) -> None:
    assert contents(folder) == {
        "a": [3, xxhash.xxh3_128_hexdigest(b"one")],
        "sub/b": [3, xxhash.xxh3_128_hexdigest(b"two")],
    }
    check_contents(folder, contents(folder))


def test_a_file_of_several_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_CHUNK", 7)
    (tmp_path / "a").write_bytes(bytes(range(100)))
    assert digest(tmp_path / "a") == xxhash.xxh3_128_hexdigest(bytes(range(100)))


def test_what_differs_is_said(folder: Path) -> None:
    recorded = contents(folder)
    (folder / "more").touch()
    check_contents(folder, recorded)
    (folder / "a").write_bytes(b"ONE")
    check_contents(folder, recorded, whole=False)
    with pytest.raises(Damaged, match="a has other contents"):
        check_contents(folder, recorded)
    (folder / "a").write_bytes(b"ones")
    for whole in (True, False):
        with pytest.raises(Damaged, match="a has 4 bytes, not 3"):
            check_contents(folder, recorded, whole=whole)
    (folder / "a").unlink()
    with pytest.raises(Damaged, match="a is gone"):
        check_contents(folder, recorded, whole=False)


def test_sealed_values_come_back(tmp_path: Path) -> None:
    about = {"key": "é", "rows": 3, "fill": 0.1234, "files": {"a": [1, "x"]}, "none": None, "tuple": (1, 2)}
    text = json.dumps(sealed(about), indent=2, ensure_ascii=False)
    assert unsealed(text) == {**about, "tuple": [1, 2]}


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"a": 1}', '{"a": 1, "seal": "x"}', "[" * 100_000])
def test_what_nobody_sealed(text: str) -> None:
    with pytest.raises(Damaged):
        unsealed(text)


def test_every_changed_value_breaks_the_seal() -> None:
    text = json.dumps(sealed({"rows": 10, "name": "abc", "list": [1, 2]}))
    for place in range(len(text)):
        changed = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
        with pytest.raises(Damaged):
            unsealed(changed)


def test_a_small_file_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_MAX_TEXT", 4)
    (tmp_path / "a").write_bytes(b"ab\xff")
    assert read_text(tmp_path / "a") == "ab\ufffd"
    (tmp_path / "a").write_bytes(b"abcde")
    with pytest.raises(Damaged, match="more than 4 bytes"):
        read_text(tmp_path / "a")


def test_what_is_no_longer_as_recorded(folder: Path) -> None:
    """Each file is looked at, whatever was said of those before it; other times alone are no change."""
    (folder / "c").write_bytes(b"four")
    recorded = digests.record_files({"a": folder / "a", "sub/b": folder / "sub" / "b", "c": folder / "c"})
    assert recorded["sub/b"] == [3, (folder / "sub" / "b").stat().st_mtime_ns, xxhash.xxh3_128_hexdigest(b"two")]
    assert [*digests.changed_files(folder, recorded)] == []
    os.utime(folder / "c", ns=(1, 1))
    assert [*digests.changed_files(folder, recorded)] == []
    (folder / "a").unlink()
    (folder / "sub" / "b").write_bytes(b"longer")
    (folder / "c").write_bytes(b"FOUR")
    unsound = {"../a": recorded["c"], "/etc/passwd": recorded["c"], "half": [4, 1], "text": ["4", 1, "x"]}
    found = [*digests.changed_files(folder, {"null": None} | unsound | recorded)]
    assert [one.rpartition(" has no sound record")[0] for one in found[:4]] == [f"'{name}'" for name in unsound]
    assert found[4:] == [
        f"{folder / 'a'} is gone", f"{folder / 'sub' / 'b'} has 6 bytes, not 3", f"{folder / 'c'} has other contents"
    ]  # fmt: skip


def test_the_same_size_and_time_are_trusted_unless_every_byte_is_read(folder: Path) -> None:
    recorded = digests.record_files({"a": folder / "a"})
    (folder / "a").write_bytes(b"ONE")
    os.utime(folder / "a", ns=(recorded["a"][1],) * 2)
    assert [*digests.changed_files(folder, recorded)] == []
    assert [*digests.changed_files(folder, recorded, whole=True)] == [f"{folder / 'a'} has other contents"]


def test_digests_are_in_the_order_of_the_files(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(9)]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number]) * (number + 1))
    for some in (files, files[:1], []):
        assert digests.digests(some) == [digest(file) for file in some]
