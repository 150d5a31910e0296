"""Which tensor lies where, and bytes that arrive whatever the system calls do at once."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hftune.errors import ArgumentError, ManifestError
from hftune.merging import write
from hftune.merging.changes import Update, replace
from hftune.merging.plan import Output
from hftune.merging.skeleton import StoredSlice
from hftune.merging.write import Progress, lay_out, write_index, write_shards
from hftune.weight_files import stored_tensors
from tests.unit.merging.models import store


def output(name: str, rows: int) -> Output:
    return Output(name, "F32", (rows, 1), None)


def names(shards: list[write.Shard]) -> dict[str, list[str]]:
    return {shard.name: [one.name for one in shard.tensors] for shard in shards}


def test_files_of_a_size() -> None:
    tensors = [output("a", 2), output("b", 1), output("c", 9), output("d", 1)]  # 4 bytes a row
    assert names(lay_out(tensors, "12")) == {
        "model-00001-of-00003.safetensors": ["a", "b"],
        "model-00002-of-00003.safetensors": ["c"],
        "model-00003-of-00003.safetensors": ["d"],
    }
    assert names(lay_out(tensors, "1KB")) == {"model.safetensors": ["a", "b", "c", "d"]}


def test_the_base_s_files(tmp_path: Path) -> None:
    """A new tensor stands behind the last old one before it, though its values come from another file."""
    first = store(tmp_path / "1", {"a": torch.ones(1)}, "one.safetensors")["a"]
    second = store(tmp_path / "2", {"b": torch.ones(1)}, "two.safetensors")["b"]
    tensors = [
        Output("a", "F32", (1,), first),
        Output("b", "F32", (1,), second),
        Output("c", "F32", (1,), first, new=True),
    ]
    assert names(lay_out(tensors, None)) == {"one.safetensors": ["a"], "two.safetensors": ["b", "c"]}
    assert names(lay_out(tensors[:1], None)) == {"model.safetensors": ["a"]}


def test_the_index(tmp_path: Path) -> None:
    shards = lay_out([output("b", 2), output("a", 3)], "8")
    write_index(tmp_path, shards)
    text = (tmp_path / "model.safetensors.index.json").read_text()
    assert json.loads(text)["metadata"] == {"total_parameters": 5, "total_size": 20}
    files = {"a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"}
    assert json.loads(text)["weight_map"] == files and list(json.loads(text)["weight_map"]) == ["a", "b"]
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n", "as transformers writes it"
    (tmp_path / "one").mkdir()
    write_index(tmp_path / "one", shards[:1])
    assert not list((tmp_path / "one").iterdir())


def merged(tmp_path: Path) -> tuple[list[bool | None], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Copied, cast, replaced by others and replaced by the same; results, what is on disk, what should be."""
    w = {name: torch.randn(40, 3) for name in ("copied", "cast", "changed", "same")}
    base, new = store(tmp_path / "base", w), store(tmp_path / "new", {"changed": w["changed"] + 1, "same": w["same"]})
    outputs = [Output("copied", "F32", (40, 3), base["copied"]), Output("cast", "BF16", (40, 3), base["cast"])]
    for name in ("changed", "same"):
        outputs.append(Output(name, "F32", (40, 3), base[name], [replace(new[name])], StoredSlice(name)))
    told: list[int] = []
    (tmp_path / "merged").mkdir()
    results = write_shards(tmp_path / "merged", lay_out(outputs, None), 2, told.append)
    assert sum(told) == 40 * 3 * (3 * 4 + 2)
    wanted = w | {"cast": w["cast"].bfloat16(), "changed": w["changed"] + 1}
    return results, load_file(tmp_path / "merged" / "model.safetensors"), wanted


def check(results: list[bool | None], found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert sorted(map(str, results)) == ["False", "None", "None", "True"]
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in wanted.items()
    )


def test_every_byte(tmp_path: Path) -> None:
    check(*merged(tmp_path))


def test_every_byte_in_blocks_and_in_small_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux writes at most 2 GiB at once, which a large vocabulary exceeds in float32."""
    pwrite = os.pwrite
    short = SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
    short.pwrite = lambda file, view, at: pwrite(file, memoryview(view)[:20], at)
    monkeypatch.setattr(write, "os", short)
    monkeypatch.setattr(write, "BLOCK_ELEMENTS", 20)
    check(*merged(tmp_path))


def test_every_byte_between_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError("cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    check(*merged(tmp_path))


@pytest.mark.parametrize(("limit", "times"), [(255, 4), (256, 2), (511, 2), (512, 1), (1024, 0)])
def test_the_disk_writes_while_tensors_are_computed(
    limit: int, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four tensors of 256 bytes: whenever more than the limit is unflushed, and once more in the end."""
    base = store(tmp_path / "base", {name: torch.ones(64) for name in "abcd"})
    outputs = [Output(name, "F32", (64,), tensor) for name, tensor in base.items()]
    called: list[str] = []
    monkeypatch.setattr(write, "_FLUSH_BYTES", limit)
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda file, name=name: called.append(name))
    for folder in ("merged", "on macOS"):
        called.clear()
        (tmp_path / folder).mkdir()
        write_shards(tmp_path / folder, lay_out(outputs, None), 1, lambda count: None)
        assert called == ["fdatasync" if folder == "merged" else "fsync"] * times + ["fsync"]
        monkeypatch.delattr(os, "fdatasync", raising=False)


def test_an_error_of_the_disk_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux tells of it once, to whoever flushes first."""
    base = store(tmp_path / "base", {name: torch.ones(64) for name in "ab"})
    outputs = [Output(name, "F32", (64,), tensor) for name, tensor in base.items()]
    told: list[int] = []

    def broken(file: int) -> None:
        told.append(file)
        if len(told) == 1:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(write, "_FLUSH_BYTES", 64)
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, broken)
    (tmp_path / "merged").mkdir()
    with pytest.raises(OSError, match="Input/output error"):
        write_shards(tmp_path / "merged", lay_out(outputs, None), 1, lambda count: None)


@pytest.mark.parametrize(("value", "words"), [(float("nan"), "NaN or infinity"), (1e6, "too large for F16")])
def test_what_a_dtype_cannot_hold(value: float, words: str, tmp_path: Path) -> None:
    base = store(tmp_path / "base", {"w": torch.full((2, 2), value)})
    tensors = [Output("w", "F16", (2, 2), base["w"])]
    (tmp_path / "merged").mkdir()
    with pytest.raises(ManifestError, match=words):
        write_shards(tmp_path / "merged", lay_out(tensors, None), 1, lambda count: None)


def test_large_sums_of_small_numbers_are_no_overflow(tmp_path: Path) -> None:
    base = store(tmp_path / "base", {"w": torch.full((2, 2), 3e38)})
    (tmp_path / "merged").mkdir()
    write_shards(tmp_path / "merged", lay_out([Output("w", "BF16", (2, 2), base["w"])], None), 1, lambda count: None)
    assert torch.isfinite(load_file(tmp_path / "merged" / "model.safetensors")["w"]).all()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fits").mkdir()
    for room, fits in ((8 + write._SPARE_BYTES, True), (7 + write._SPARE_BYTES, False)):
        monkeypatch.setattr(write, "free_bytes", lambda folder, room=room: room)
        monkeypatch.setattr(write, "write_shards", lambda *given: [])
        if fits:
            assert write._write_weights(tmp_path / "fits", lay_out([output("a", 2)], None)) == 0
        else:
            with pytest.raises(ArgumentError, match="left"):
                write._write_weights(tmp_path / "fits", lay_out([output("a", 2)], None))
    (tmp_path / "fits").rmdir()
    monkeypatch.setattr(write, "free_bytes", lambda folder: 10**6)
    with pytest.raises(ArgumentError, match=r"needs 0\.00 GB, the disk of .* has 0\.00 GB left"):
        write._write_weights(tmp_path, lay_out([output("a", 2)], None))
    assert not list(tmp_path.iterdir())


def test_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 5.0, 11.0, 11.0, 12.0])
    monkeypatch.setattr(write.time, "monotonic", lambda: next(seconds))
    said: list[str] = []
    logger = SimpleNamespace(info=lambda text, *values: said.append(text % values))
    monkeypatch.setattr(write, "get_logger", lambda: logger)
    progress = Progress(4_000_000_000)
    for _ in range(3):
        progress.advance(1_000_000_000)
    assert said == ["merged 2.0 of 4.0 GB (50%)"]


@pytest.mark.parametrize(("later", "lines"), [(10.0, []), (10.5, ["merged 0.0 of 0.0 GB (100%)"])])
def test_a_line_after_more_than_ten_seconds(later: float, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    logger = SimpleNamespace(info=lambda text, *values: said.append(text % values))
    monkeypatch.setattr(write, "get_logger", lambda: logger)
    seconds = iter([3.0, *[3.0 + later] * 2])
    monkeypatch.setattr(write.time, "monotonic", lambda: next(seconds))
    Progress(1).advance(1)
    assert said == lines


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write.sys.stderr, "isatty", lambda: True, raising=False)
    progress = Progress(10)
    bar: Any = progress.bar
    progress.advance(4)
    progress.advance(2)
    assert (bar.total, bar.n, progress.done) == (10, 6, 6)
    assert (bar.desc, bar.unit, bar.unit_scale) == ("merging", "B", True), "1.5GB, not 1500000000"
    progress.close()
    assert bar.disable, "closed"
    monkeypatch.setattr(write.sys.stderr, "isatty", lambda: False, raising=False)
    plain = Progress(10)
    assert plain.bar is None
    plain.close()


@pytest.mark.parametrize(
    ("results", "changed", "said"),
    [
        ([True, None, False, True], 2, "1 of 3 adapted tensors are the base's own after rounding"),
        ([True, None], 1, ""),
        ([False, None], 0, ""),
    ],
)
def test_tensors_that_rounding_leaves_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: list[Any], changed: int, said: str
) -> None:
    notices: list[str] = []
    monkeypatch.setattr(write, "notice", notices.append)
    monkeypatch.setattr(write, "write_shards", lambda folder, shards, workers, advance: results)
    assert write._write_weights(tmp_path, []) == changed
    assert notices == ([said] if said else [])


@pytest.mark.parametrize(
    ("columns", "steps"),
    [(1, [20, 5]), (3, [6, 6, 6, 6, 1]), (30, [1] * 25)],
)
def test_rows_that_are_in_memory_at_once(columns: int, steps: list[int], tmp_path: Path, monkeypatch: Any) -> None:
    """Blocks of 20 elements, at least a row."""
    monkeypatch.setattr(write, "BLOCK_ELEMENTS", 20)
    weight, seen = torch.randn(25, columns), []

    def apply(block: torch.Tensor, start: int, rows: int) -> torch.Tensor:
        seen.append((start, rows, len(block)))
        return block.add_(1)

    update = Update(("one more",), lambda where, shape: apply)
    stored = store(tmp_path / "base", {"w": weight})["w"]
    made = Output("w", "F32", (25, columns), stored, [update], StoredSlice("w"))
    (tmp_path / "merged").mkdir()
    assert write_shards(tmp_path / "merged", lay_out([made], None), 1, lambda count: None) == [True]
    assert torch.equal(load_file(tmp_path / "merged" / "model.safetensors")["w"], weight + 1)
    starts = [sum(steps[:number]) for number in range(len(steps))]
    assert seen == [(start, rows, rows) for start, rows in zip(starts, steps, strict=True)]


def test_a_base_that_ends_too_early(tmp_path: Path) -> None:
    stored = store(tmp_path / "base", {"w": torch.ones(4, 4)})["w"]
    with stored.file.open("r+b") as file:
        file.truncate(stored.start + 10)
    (tmp_path / "merged").mkdir()
    with pytest.raises(ManifestError, match="ends too early"):
        write_shards(tmp_path / "merged", lay_out([Output("w", "F32", (4, 4), stored)], None), 1, lambda count: None)


def test_a_new_file_is_not_written_through_somebody_s(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        write._begin(tmp_path / "model.safetensors", lay_out([output("a", 2)], None)[0])
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("rows", range(1, 9))
def test_tensors_begin_where_eight_divides(rows: int, tmp_path: Path) -> None:
    (shard,) = lay_out([output("a" * rows, rows), output("é", 1)], None)
    file, starts = write._begin(tmp_path / "model.safetensors", shard)
    os.close(file)
    assert starts[0] % 8 == 0 and starts[1] == starts[0] + 4 * rows
    size = (tmp_path / "model.safetensors").stat().st_size
    assert size == starts[1] + 4 and (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o644 & ~umask()
    found = stored_tensors(tmp_path)
    assert {name: (one.start, one.shape) for name, one in found.items()} == {
        "a" * rows: (starts[0], (rows, 1)), "é": (starts[1], (1, 1))
    }  # fmt: skip


def umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def test_what_is_on_disk_is_what_was_planned(tmp_path: Path) -> None:
    store(tmp_path, {"a": torch.ones(2, 1)})
    write._check_written(tmp_path, lay_out([output("a", 2)], None))
    for wrong in ([output("a", 3)], [output("b", 2)], [output("a", 2), output("b", 1)]):
        with pytest.raises(AssertionError, match="other tensors than were planned"):
            write._check_written(tmp_path, lay_out(wrong, None))
    store(tmp_path, {"a": torch.ones(0, 1)})
    with pytest.raises(AssertionError, match="holds empty tensors"):
        write._check_written(tmp_path, lay_out([output("a", 0)], None))


@pytest.mark.parametrize("inside_the_kernel", [True, False])
def test_a_long_tensor_is_copied_in_many_calls(
    inside_the_kernel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not inside_the_kernel:  # as on macOS
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    monkeypatch.setattr(write, "_COPY_BYTES", 8)
    # Something lies behind it, which is not copied.
    source = store(tmp_path, {"a": torch.arange(8.0), "b": torch.ones(9)}, "a.safetensors")["a"]
    target = tmp_path / "copy"
    with target.open("wb") as file:
        write._copy(source, file.fileno(), 5)
    assert target.read_bytes()[5:] == torch.arange(8.0).numpy().tobytes()


def test_workers_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own threads in each of them would be as many again."""
    seen: list[int] = []
    write_tensor = write._write_tensor
    monkeypatch.setattr(
        write, "_write_tensor", lambda *given: seen.append(torch.get_num_threads()) or write_tensor(*given)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        merged(tmp_path)
    finally:
        torch.set_num_threads(before)
    assert seen == [1] * 4


@pytest.mark.parametrize(
    ("system", "workers"),
    [
        ({"sched_getaffinity": lambda process: {0, 3, 5} if process == 0 else {0}, "cpu_count": lambda: 64}, 3),
        ({"sched_getaffinity": lambda process: set(range(20)), "cpu_count": lambda: 64}, 8),
        ({"cpu_count": lambda: 5}, 5),
        ({"cpu_count": lambda: None}, 1),
    ],
)
def test_a_worker_a_core(system: Any, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as this process may use, where the system says that; and no more than eight."""
    seen: list[int] = []
    monkeypatch.setattr(write, "os", SimpleNamespace(**system))
    monkeypatch.setattr(write, "free_bytes", lambda folder: 10**12)
    monkeypatch.setattr(write, "write_shards", lambda folder, shards, number, advance: seen.append(number) or [])
    write._write_weights(tmp_path, [])
    assert seen == [workers]


def test_a_file_is_what_safetensors_writes(tmp_path: Path) -> None:
    """Byte by byte: the same header, which transformers asks for, without a space but the padding behind it."""
    tensors = {"a": torch.randn(3, 1), "b.weight": torch.randn(2, 3, 1), "é": torch.randn(5)}
    stored = store(tmp_path / "base", tensors)
    outputs = [Output(name, "F32", tuple(tensor.shape), stored[name]) for name, tensor in tensors.items()]
    (tmp_path / "merged").mkdir()
    write_shards(tmp_path / "merged", lay_out(outputs, None), 1, lambda count: None)
    assert (tmp_path / "merged" / "model.safetensors").read_bytes() == stored["a"].file.read_bytes()


def test_numbers_of_other_kinds_are_not_looked_at() -> None:
    """They have no infinity, or no sum that torch knows."""
    output = Output("w", "F8_E4M3", (1, 2), None)
    assert write._round(torch.tensor([[1.0, 2.0]]), output).float().tolist() == [[1.0, 2.0]]


def test_after_an_error_nothing_more_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fifty tensors the third fails: what waits is neither computed nor flushed."""
    flushes_wait = threading.Event()

    class Pool(ThreadPoolExecutor):
        """Its jobs, but for the first three of tensors, wait until it is told to stop."""

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.stopping, self.begun, self.asked = threading.Event(), 0, 0
            pools.append(self)

        def submit(self, job: Any, *given: Any) -> Any:
            def waiting() -> Any:
                self.begun += 1
                if self is pools[1] or self.begun > 3:
                    self.stopping.wait(60)
                elif self.begun == 3:
                    flushes_wait.wait(60)
                    raise OSError("broken")
                return job(*given)

            self.asked += 1
            if self is pools[1] and self.asked == 2:
                flushes_wait.set()
            return super().submit(waiting)

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            self.stopping.set()
            super().shutdown()

    pools: list[Pool] = []
    base = store(tmp_path / "base", {f"{number}": torch.ones(1) for number in range(50)})
    outputs = [Output(name, "F32", (1,), tensor) for name, tensor in base.items()]
    monkeypatch.setattr(write, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(write, "_FLUSH_BYTES", 0)
    (tmp_path / "merged").mkdir()
    with pytest.raises(OSError, match="broken"):
        write_shards(tmp_path / "merged", lay_out(outputs, None), 1, lambda count: None)
    computing, flushing = pools
    assert computing.begun <= 4 and flushing.begun <= 1
