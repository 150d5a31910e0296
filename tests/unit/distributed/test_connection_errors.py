"""Errors of lost processes are known, in the words of this version of torch."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed as dist

from hftune.distributed.watchdog import describe_lost_contact, lost_contact


def test_errors_of_lost_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    gloo = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:1")
    assert lost_contact(gloo) and lost_contact(dist.DistStoreError("wait timeout after 10ms"))
    assert not lost_contact(RuntimeError("CUDA out of memory")) and not lost_contact(KeyError("gloo/"))
    assert not lost_contact(None)
    assert "nobody said why" in describe_lost_contact(gloo)
    monkeypatch.setenv("MASTER_ADDR", "nowhere")
    waited = dist.DistNetworkError("The client socket has timed out after 1000ms while trying to connect")
    assert "have not met" in describe_lost_contact(waited) and "nowhere:" in describe_lost_contact(waited)


def test_torch_says_connection_lost_in_words_that_are_known() -> None:
    """The real error, of this version of torch: nobody listens at the port."""
    with pytest.raises(RuntimeError) as caught:
        dist.TCPStore("127.0.0.1", 9, 2, is_master=False, timeout=timedelta(seconds=1))
    assert lost_contact(caught.value) and "have not met" in describe_lost_contact(caught.value)
