"""A run whose model comes from a mirror of the Hub and whose data lie in a store, served by this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.stores.hubs import HuggingFace, served


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_mirror_and_a_store(
    run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {file.name: file.read_bytes() for file in tiny_model.iterdir()}
    records = next((tiny_data / "sft").glob("*.jsonl")).read_bytes()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "0")
    repos = {"models/owner/tiny": model, "datasets/owner/chats": {"a.jsonl": records}}
    url = "hf://datasets/owner/chats/a.jsonl"
    with served(HuggingFace(repos)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        for name, given in (("mirror", "owner/tiny"), ("store", "hf://owner/tiny")):
            flags = [
                "--model_name_or_path",
                given,
                "--train_file_dir",
                f"{url}#8",
                "--output_dir",
                str(tmp_path / name),
            ]
            more = ["--max_steps", "1", "--max_length", "64", "--use_cpu", "True", "--report_to", "none"]
            run("run_sft.py", *flags, "--use_peft", "True", *more).check()
    manifest = json.loads((tmp_path / "store" / "hftune.json").read_text())
    origins = {given: path for path, given in manifest["origins"].items()}
    assert set(origins) == {url, "hf://owner/tiny"} and manifest["status"] == "complete"
    # Local files like any other: their contents are recorded.
    assert manifest["base"]["name"] == origins["hf://owner/tiny"] and len(manifest["base"]["fingerprint"]) == 16
    assert "files" in manifest["inputs"][origins[url]] and "model" in manifest["inputs"][origins["hf://owner/tiny"]]
    assert manifest["data"]["train"]["used"] == 8
    mirror = json.loads((tmp_path / "mirror" / "hftune.json").read_text())
    assert mirror["base"]["name"] == "owner/tiny" and set(mirror["origins"].values()) == {url}
