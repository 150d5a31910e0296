"""The head in chunks takes what the kernel allocates, tensor by tensor, without data."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hftune.models.kernels.chunked_heads import LogitShape, answer_log_probs, weighted_loss
from hftune.preflight.estimating.parts import answer_head
from hftune.preflight.estimating.tracing import Tracker

F32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize(("tokens", "words"), [(256, 2000), (1024, 32000), (1024, 98304), (8192, 98304)])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_as_the_kernel_allocates(tokens: int, words: int, dtype: torch.dtype, trained: bool, weighted: bool) -> None:
    with FakeTensorMode():
        head = torch.nn.Linear(512, words, bias=False, dtype=dtype).requires_grad_(trained)
        hidden = torch.empty(tokens, 512, dtype=dtype, requires_grad=True)
        targets, factors = torch.empty(tokens, dtype=torch.long), torch.empty(tokens)
        tracker = Tracker([hidden, head.weight, targets, factors])
        with tracker:
            if weighted:
                loss, _ = weighted_loss(head, hidden, targets, LogitShape(), 0, factors)
            else:
                loss = answer_log_probs(head, hidden, targets, LogitShape(), 0)[0].sum()
            tracker.begin("backward")
            loss.backward()
    size = dtype.itemsize
    sizes = {"tokens": tokens, "words": words, "hidden": 512, "hidden_bytes": size, "weight_bytes": size}
    found = answer_head(**sizes, trained=trained, on_cpu=True, weighted=weighted)
    forward, backward = tracker.of("before"), tracker.of("backward")
    # The states are picked from all of a batch first, which is counted with the head.
    assert found.forward - hidden.nbytes == pytest.approx(forward.peak, rel=0.1, abs=2**23)
    assert found.backward == pytest.approx(backward.peak - backward.start, rel=0.1, abs=2**21)
