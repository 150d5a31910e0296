"""Steps of decoding over a cache of a fixed size, as they are recorded on a GPU (tests/gpu records them)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from hftune.models import decoding, recorded_decoding
from hftune.models.attention.segments import SEGMENTS, VARLEN
from hftune.models.decoding import decoding_together
from hftune.models.recorded_decoding import FixedLayer, can_be_recorded, record
from tests.table.tiny import tiny_config
from tests.unit.models.test_decoding import OPTIONS, EndsOften, config, drawn, prompts, tiny, watched


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Everything is recorded, by a stand-in that runs the pass again; here are the uses of each recording."""
    uses: list[int] = []

    def record(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        result: list[torch.Tensor] = []
        uses.append(0)

        def replay() -> torch.Tensor:
            uses[-1] += 1
            again = run()
            # A graph writes where it wrote before.
            result.append(again) if not result else result[0].copy_(again)
            return result[0]

        return replay

    monkeypatch.setattr(decoding, "can_be_recorded", lambda model, layers: True)
    monkeypatch.setattr(recorded_decoding, "record", record)
    return uses


@pytest.mark.parametrize(
    ("model_type", "options"),
    [("llama", one) for one in OPTIONS[1:]] + [(name, {}) for name in ("gemma", "gpt2", "qwen3")],
)
def test_draws_what_transformers_draws(model_type: str, options: dict[str, Any], recordings: list[int]) -> None:
    model = tiny(model_type)
    for given in (prompts(), {"input_ids": torch.tensor([[5, 6, 7]] * 4)}):
        expected = drawn(model, given, config(**options))
        with decoding_together(model, torch.float32) as kept:
            assert torch.equal(drawn(model, given, config(**options)), expected)
        assert kept.batches
    # Of 12 tokens the first is the prompts' and the second a usual pass.
    assert recordings == [10, 10]


def test_answers_that_have_ended_leave_with_the_cache_that_is_full(
    recordings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_decoding, "ROOM", 4)
    model = tiny("llama")
    model.lm_head = EndsOften(model.lm_head)
    options = config(max_new_tokens=20)
    expected = drawn(model, prompts(), options)
    shapes = watched(model)
    with decoding_together(model, torch.float32):
        assert torch.equal(drawn(model, prompts(), options), expected)
    rows = [rows for rows, _ in shapes[1:]]
    changes = [at for at in range(1, len(rows)) if rows[at] != rows[at - 1]]
    assert changes and all(at % 5 == 0 for at in changes)
    assert len(recordings) == -(-len(rows) // 5) and max(recordings) == 4


def test_a_fixed_layer_keeps_what_there_was_and_picks_rows() -> None:
    keys = torch.randn(3, 2, 5, 4)
    layer = FixedLayer(keys, -keys, 8)
    assert layer.keys.shape == (3, 2, 8, 4) and int(layer.get_seq_length()) == 5
    assert torch.equal(layer.keys[:, :, :5], keys) and torch.equal(layer.values[:, :, :5], -keys)
    layer.batch_select_indices(torch.tensor([2, 0]))
    assert torch.equal(layer.keys[:, :, :5], keys[[2, 0]]) and torch.equal(layer.values[:, :, :5], -keys[[2, 0]])


def test_float32_weights_under_autocast(recordings: list[int]) -> None:
    """As weights are trained in full: keys come in float32, values in 16 bits, and all are kept in float32."""
    model = cast_to_bfloat16(tiny("llama"))
    greedy = config(do_sample=False)
    expected = drawn(model, prompts(), greedy)
    with decoding_together(model, torch.float32):
        assert torch.equal(drawn(model, prompts(), greedy), expected)
    assert recordings == [10]
    layer = FixedLayer(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4).bfloat16(), 5)
    assert layer.values.dtype == torch.float32


def cast_to_bfloat16(model: Any) -> Any:
    """The model, with a forward pass under autocast."""
    forward, device = model.forward, model.device.type

    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            return forward(*args, **kwargs)

    cast.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    model.forward = cast
    return model


class OnAGPU:
    """What is asked of a model, as a GPU would have it."""

    _can_compile_fullgraph = True

    def __init__(self, *devices: str, attention: str = "sdpa", kind: str = "llama", **fields: Any) -> None:
        self.devices = devices or ("cuda:0",)
        self.config = tiny_config(kind)
        self.config._attn_implementation = attention
        vars(self).update(fields)

    def parameters(self) -> list[Any]:
        """All there is to know of them."""
        return [type("Parameter", (), {"device": torch.device(device)}) for device in self.devices]


@pytest.mark.parametrize(
    ("model", "recorded"),
    [
        *((OnAGPU(attention=name), True) for name in ("sdpa", "eager", SEGMENTS, VARLEN)),
        # What takes no mask would read behind the last token.
        *((OnAGPU(attention=name), False) for name in ("flash_attention_2", "flex_attention", "someone/kernel")),
        (OnAGPU("cpu"), False),
        (OnAGPU("cuda:0", "cuda:1"), False),
        (OnAGPU(_can_compile_fullgraph=False), False),
        (OnAGPU(quantization_method="bitsandbytes"), False),
        (OnAGPU(quantization_method="bitsandbytes", is_loaded_in_4bit=True), True),
    ],
)
def test_what_launches_the_same_kernels_is_recorded(
    model: Any, recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [DynamicLayer()]
    assert can_be_recorded(model, layers) is recorded
    assert not can_be_recorded(model, [*layers, DynamicSlidingWindowLayer(sliding_window=4)])
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    assert not can_be_recorded(model, layers)


def test_the_part_that_writes_is_asked_too() -> None:
    model = OnAGPU(kind="gemma3")
    assert can_be_recorded(model, [DynamicLayer()])
    model.config.get_text_config()._attn_implementation = "flash_attention_2"
    assert not can_be_recorded(model, [DynamicLayer()])


def test_what_cannot_be_recorded_is_drawn_without(recordings: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(run: Any) -> Any:
        raise RuntimeError("CUDA error: operation not permitted\nFor debugging consider")

    monkeypatch.setattr(recorded_decoding, "record", fails)
    said = []
    monkeypatch.setattr(recorded_decoding, "notice", said.append)
    model = tiny("llama")
    expected = drawn(model, prompts(), config())
    with decoding_together(model, torch.float32):
        assert torch.equal(drawn(model, prompts(), config()), expected)
    (line,) = said
    assert line.endswith("could not be recorded (CUDA error: operation not permitted)")


class Cuda:
    """What `record` asks of torch.cuda, written down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[Any] = []
        self.numbers = SimpleNamespace(clone_state=lambda: "before", graphsafe_set_state=self.said.append)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: self.said.append("replay")))
        monkeypatch.setattr(torch.cuda, "graph", self.graph)
        monkeypatch.setattr(torch.cuda, "default_generators", [None, self.numbers])
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)

    @contextmanager
    def graph(self, graph: Any, capture_error_mode: str) -> Iterator[None]:
        """Others may use the GPU meanwhile."""
        assert graph.replay is not None and capture_error_mode == "thread_local"
        self.said.append("recording")
        yield
        self.said.append("recorded")


def test_a_recording_is_replayed_into_the_same_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, logits = Cuda(monkeypatch), torch.zeros(2)
    replay = record(lambda: logits)
    assert cuda.said == ["recording", "recorded"]
    assert replay() is logits and replay() is logits
    assert cuda.said[2:] == ["replay", "replay"]

    def waits() -> torch.Tensor:
        raise RuntimeError("operation not permitted when stream is capturing")

    cuda.said.clear()
    with pytest.raises(RuntimeError, match="not permitted"):
        record(waits)
    assert cuda.said == ["recording", "before"], "numbers can be drawn again"


def test_what_is_recorded(recordings: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign of life a token; a cache with room for what may be drawn and no more; nothing with dropout."""
    alive, sizes = [], []
    monkeypatch.setattr(recorded_decoding.phases, "keep_alive", lambda: alive.append(1))
    made = FixedLayer.__init__

    def noted(self: FixedLayer, keys: torch.Tensor, values: torch.Tensor, tokens: int) -> None:
        made(self, keys, values, tokens)
        sizes.append((keys.shape[2], tokens))

    monkeypatch.setattr(FixedLayer, "__init__", noted)
    for model in (tiny("llama", attention_dropout=0.3).train(), tiny("llama")):
        with decoding_together(model, torch.float32):
            found = drawn(model, prompts(), config(max_new_tokens=6, do_sample=False, eos_token_id=None))
        assert found.shape == (6, 10)
        assert (len(alive), recordings) == ((0, []) if model.training else (5, [4]))
    assert set(sizes) == {(4, 10)} and recorded_decoding.ROOM > 10
