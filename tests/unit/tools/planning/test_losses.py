"""The head in tiles takes what TRL's own function allocates, tensor by tensor, with and without data."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from trl.kernels import ChunkedLogProbFunction

from hftune.tools.planning.losses import WORDS, HeadSizes, fused_head
from hftune.tools.planning.tracker import Tracker

F32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    ("tokens", "words", "hidden_dtype", "weight_dtype", "autocast", "trained"),
    [
        (1024, 32000, F32, F32, False, True),
        (1024, 3 * WORDS, F32, F32, False, False),
        (1024, 3 * WORDS, F32, F32, True, True),
        (8192, 3 * WORDS, F32, F32, False, True),
        (1024, 3 * WORDS, F32, BF16, True, False),
        (1024, 3 * WORDS, BF16, BF16, False, True),
        (256, 2000, F32, F32, False, True),
    ],
)
def test_as_trl_allocates(
    tokens: int, words: int, hidden_dtype: torch.dtype, weight_dtype: torch.dtype, autocast: bool, trained: bool
) -> None:
    with FakeTensorMode():
        hidden = torch.empty(tokens, 512, dtype=hidden_dtype, requires_grad=True)
        weight = torch.empty(words, 512, dtype=weight_dtype, requires_grad=trained)
        targets = torch.empty(tokens, dtype=torch.long)
        tracker = Tracker([hidden, weight, targets])
        with tracker:
            with torch.autocast("cpu", BF16, enabled=autocast):
                outputs = ("log_probs", "entropy", "is_top1")
                found = ChunkedLogProbFunction.apply(hidden, weight, None, targets, 1.0, WORDS, None, 1.0, outputs)
            loss = found[0].sum()
            tracker.begin("backward")
            loss.backward()
    compute = BF16 if autocast else hidden_dtype
    sizes = HeadSizes(
        tokens=tokens,
        hidden=512,
        words=words,
        hidden_bytes=hidden_dtype.itemsize,
        weight_bytes=weight_dtype.itemsize,
        compute_bytes=compute.itemsize,
        trained=trained,
        triton=False,
    )
    head = fused_head(sizes)
    forward, backward = tracker.of("before"), tracker.of("backward")
    # The hidden states that go in are counted with the head: a row's last token is left out, so they are a copy.
    copied = hidden.nbytes
    assert head.forward - copied == pytest.approx(forward.peak, rel=0.02)
    assert head.backward == pytest.approx(backward.peak - backward.start, rel=0.05)


def test_in_place_tiles_of_a_gpu_take_less() -> None:
    sizes = HeadSizes(8192, 4096, 151936, 4, 4, 2, trained=True, triton=True)
    # 4,096 x 32,768 in 16 bit is 256 MiB; the head's gradient in float32 2.3 GiB, the hidden states' 128 MiB.
    assert fused_head(sizes).backward / 2**20 == pytest.approx(256 + 2374 + 128 + 256 + 32, rel=0.01)
    logits = 8192 * 151936 * 4
    assert fused_head(sizes).forward < logits / 4
