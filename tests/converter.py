"""A stand-in for llama.cpp's converter: writes what it was asked, as JSON, and knows the cut of no tokenizer."""

from __future__ import annotations

from pathlib import Path

_CONVERTER = """
import json, pathlib, sys
from conversion.base import TextModel

def main():
    asked = dict(zip(sys.argv[2::2], sys.argv[3::2])) if "--mmproj" not in sys.argv else {"--outfile": sys.argv[-1]}
    if "fail" in asked.get("--model-name", ""):
        sys.exit("Model FailForCausalLM is not supported")
    said = {"asked": [pathlib.Path(word).name for word in sys.argv[1:]], "cut": TextModel().get_vocab_base_pre(None)}
    said["template"] = pathlib.Path(sys.argv[1], "chat_template.jinja").read_text()
    pathlib.Path(asked["--outfile"]).write_text(json.dumps(said))
"""
_BASE = "class TextModel:\n    def get_vocab_base_pre(self, tokenizer):\n        raise NotImplementedError\n"


def stand_in(folder: Path) -> str:
    """Write it into a folder, for `--converter`."""
    (folder / "conversion").mkdir(parents=True, exist_ok=True)
    (folder / "conversion" / "__init__.py").touch()
    (folder / "conversion" / "base.py").write_text(_BASE)
    (folder / "convert_hf_to_gguf.py").write_text(_CONVERTER)
    return str(folder)
