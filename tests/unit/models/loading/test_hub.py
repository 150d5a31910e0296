"""The Hub out of reach: told at once, by a look at its address, for every command that loads by name."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError
from hftune.merging.inputs import find_base
from hftune.models.loading import from_pretrained
from hftune.models.loading.from_pretrained import pretrained
from hftune.models.loading.tokenizer import load_tokenizer


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Addresses that were looked at; none of them answers."""
    found: list[Any] = []

    def refuse(address: Any, timeout: float) -> Any:
        found.append(address)
        raise OSError("no route")

    monkeypatch.setattr(from_pretrained.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(from_pretrained.socket, "create_connection", refuse)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    clear = from_pretrained.hub_answers.cache_clear  # a test may put another function there
    clear()
    yield found
    clear()


def test_a_name_is_silent_and_a_folder_is_not_asked_for(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not from_pretrained.hub_is_silent(tmp_path) and not asked
    assert from_pretrained.hub_is_silent("some-owner/some-model") and from_pretrained.hub_is_silent("another/one")
    assert len(asked) == 1, "asked once a process"
    monkeypatch.setattr(from_pretrained.constants, "HF_HUB_OFFLINE", True)
    assert not from_pretrained.hub_is_silent("some-owner/some-model"), "nobody asks it then"


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("https://huggingface.co", ("huggingface.co", 443)),
        ("http://mirror:8080/hub", ("mirror", 8080)),
        ("http://mirror", ("mirror", 80)),
    ],
)
def test_the_address_of_an_endpoint(endpoint: str, address: tuple[str, int], asked: list[Any]) -> None:
    assert not from_pretrained.hub_answers(endpoint) and asked == [address]


def test_who_listens_answers_and_a_proxy_may(monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> None:
    monkeypatch.setattr(from_pretrained.socket, "create_connection", lambda *_, **__: socket.socket())
    assert from_pretrained.hub_answers("http://one")
    monkeypatch.undo()
    monkeypatch.setenv("ALL_PROXY", "http://proxy")
    assert from_pretrained.hub_answers("http://127.0.0.1:9")


def test_only_the_cache_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **options: given.append(options))
    pretrained(AutoConfig, "some-owner/some-model", trust_remote_code=False)
    pretrained(AutoConfig, "some-owner/some-model", trust_remote_code=False, local_files_only=False)
    monkeypatch.setattr(from_pretrained, "hub_answers", lambda endpoint: True)
    pretrained(AutoConfig, "some-owner/some-model", trust_remote_code=False)
    assert [one.get("local_files_only") for one in given] == [True, False, None]


def test_a_stage_says_it_at_once(asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--model_name_or_path", "some-owner/some-model", "--cache_dir", str(tmp_path), "--use_cpu", "True"]
    given = parse_arguments("sft", [*flags, "--output_dir", "o", "--report_to", "none"])
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"waits for {seconds} seconds"))
    with pytest.raises(ArgumentError, match=r"no folder some-owner/some-model here.*does not answer"):
        load_tokenizer(given.model, given.training)
    assert len(asked) == 1


def test_a_merge_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ArgumentError, match="the Hub does not answer, and it is not in the cache"):
        find_base("some-owner/some-model")
