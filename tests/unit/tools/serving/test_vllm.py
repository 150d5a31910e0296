"""vLLM's server with the same folder, template and arguments: the command, and a stand-in that is started by it."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.asking import ServeArguments
from hftune.checkpoints.manifest import write_manifest
from hftune.errors import ArgumentError
from hftune.tools.serving import servers
from hftune.tools.serving.run import serve
from hftune.tools.serving.servers import vllm_server


def flags(command: list[str]) -> dict[str, list[str]]:
    """The values of each flag."""
    found: dict[str, list[str]] = {}
    for word in command[3:]:
        if word.startswith("--"):
            found[word] = []
        else:
            found[[*found][-1]].append(word)
    return found


def test_the_command(folders: dict[str, Path], tmp_path: Path) -> None:
    args = ServeArguments(
        model=str(folders["base"]),
        max_model_len=99,
        api_key="never-in-a-command",
        chat_template_kwargs='{"enable_thinking": false}',
    )
    engine = vllm_server(args, "base", {"calls": str(folders["calls"])}, 81, tmp_path)
    command = engine.command
    assert engine.env == {"VLLM_API_KEY": "never-in-a-command"}
    assert command[1:3] == ["serve", str(folders["base"])] and "never-in-a-command" not in " ".join(command)
    found = flags(command)
    template = (folders["base"] / "chat_template.jinja").read_text()
    assert Path(found["--chat-template"][0]).read_text() == template
    assert json.loads(found["--default-chat-template-kwargs"][0]) == {"enable_thinking": False}
    assert found["--served-model-name"] == ["base"] and found["--port"] == ["81"] and found["--max-model-len"] == ["99"]
    assert found["--lora-modules"] == [f"calls={folders['calls']}"] and found["--max-lora-rank"] == ["64"]
    assert found["--tool-call-parser"] == ["hermes"] and found["--reasoning-parser"] == ["qwen3"]


def test_an_adapter_is_laid_over_its_base_with_what_its_manifest_says(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "give_recorded", lambda tokenizer, folder, given: tokenizer)
    args = ServeArguments(model=str(folders["calls"]))
    found = flags(command := vllm_server(args, "calls", {}, 81, tmp_path).command)
    assert command[2] == str(folders["base"]) and found["--lora-modules"] == [f"calls={folders['calls']}"]
    assert found["--served-model-name"] == ["calls-base"] and found["--tokenizer"] == [str(folders["calls"])]


def test_adapters_that_vllm_cannot_lay_over_a_base(folders: dict[str, Path], tmp_path: Path) -> None:
    manifest: dict[str, Any] = {"base": {"name": str(folders["base"]), "adapters": [str(folders["thinks"])]}}
    for file in folders["calls"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_manifest(tmp_path, manifest)
    with pytest.raises(ArgumentError, match=r"lies upon other adapters(.|\n)*hftune merge"):
        vllm_server(ServeArguments(model=str(folders["base"])), "base", {"chain": str(tmp_path)}, 81, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "hftune.json").unlink()
    for changed, said in (
        ({"use_dora": True}, "is DoRA"),
        ({"alpha_pattern": {"q_proj": 2}}, "several ranks or scales"),
        ({"rank_pattern": {"q_proj": 2}}, "several ranks or scales"),
    ):
        (tmp_path / "adapter_config.json").write_text(json.dumps(config | changed))
        with pytest.raises(ArgumentError, match=said):
            vllm_server(ServeArguments(model=str(folders["base"])), "base", {"one": str(tmp_path)}, 81, tmp_path)


def test_a_stand_in_is_started_and_its_end_is_told(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, said = tmp_path / "bin" / "vllm", tmp_path / "said.json"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"json.dump([sys.argv, os.environ.get('VLLM_API_KEY')], open({str(said)!r}, 'w'))\n"
        "sys.exit(3)\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ArgumentError, match="vLLM ended with code 3"):
        serve(ServeArguments(model=str(folders["base"]), backend="vllm", api_key="the-key-of-vllm", port=0))
    argv, key = json.loads(said.read_text())
    assert argv[1:3] == ["serve", str(folders["base"])] and key == "the-key-of-vllm"
    assert not Path(argv[argv.index("--chat-template") + 1]).exists(), "what was put aside is removed"
