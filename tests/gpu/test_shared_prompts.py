"""Shared prompts on a GPU: one call of the kernel for all runs, with the keys of the prompt before an answer's own."""

from __future__ import annotations

import pytest
import torch

from hftune.models.attention.machine import has_varlen
from hftune.models.attention.segments import SEGMENTS, VARLEN
from hftune.models.kernels.heads import add_answer_head
from hftune.trainers.preference.batches import PairCollator
from tests.parity.test_pair_layouts import NOT_OF_THE_MODEL, records, tiny

pytestmark = pytest.mark.gpu


@pytest.mark.skipif(not has_varlen(), reason="torch's varlen attention does not run here")
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_kernel_and_sdpa_agree(name: str) -> None:
    found = []
    for attention, shared in ((SEGMENTS, False), (SEGMENTS, True), (VARLEN, True)):
        model = tiny(name, attention).cuda().bfloat16()
        add_answer_head(model)
        batch = PairCollator(0, flat=True, shared=shared)(records())
        inputs = {
            key: value.cuda() if isinstance(value, torch.Tensor) else value
            for key, value in batch.items()
            if key not in NOT_OF_THE_MODEL
        }
        log_probs = model(**inputs).log_probs
        log_probs.sum().backward()
        found.append((log_probs.detach(), model.get_input_embeddings().weight.grad.float()))
    for log_probs, gradient in found[1:]:
        torch.testing.assert_close(log_probs, found[0][0], atol=0.15, rtol=0.02)
        assert (gradient - found[0][1]).norm() < 0.05 * found[0][1].norm()
