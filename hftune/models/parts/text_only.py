"""The language model alone of a folder that holds several parts, as its own class stores it."""

from __future__ import annotations

import shutil
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM

from hftune.constants import PROCESSOR_FILES
from hftune.logging import notice
from hftune.models.loading.from_pretrained import pretrained
from hftune.models.parts.language_part import language_config, own_name
from hftune.models.parts.stored_form import placed
from hftune.models.parts.whole_model import Piece, language_skeleton, write_pieces
from hftune.weight_files import INDEX_NAME, stored_tensors, weight_files


def leave_language_model(folder: Path, *, trust_remote_code: bool) -> None:
    """Take all other parts out of a folder that nobody else reads yet: tensors, config, files of processors.

    Args:
        folder: With weights and config.json.
        trust_remote_code: Run code that comes with it.
    """
    whole = pretrained(AutoConfig, folder, trust_remote_code=trust_remote_code)
    stored = stored_tensors(folder)
    config = language_config(whole)
    model = language_skeleton(config, trust_remote_code)
    there = placed(model, stored, whole)
    left = stored.keys() - there.places.keys()
    if not left and config is whole:
        return
    if there.rules.within is None:
        names = {name: own_name(name, there.rules.prefixes) for name in stored if name in there.places}
        write_pieces(
            folder, [Piece(own, stored[n], stored[n].dtype, stored[n].file.name, True) for n, own in names.items()]
        )
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
    else:
        _save_again(folder, trust_remote_code)
    for file in folder.glob(PROCESSOR_FILES):
        file.unlink()
    notice(f"--text_only_export: {len(left)} tensors of other parts are left out")


def _save_again(folder: Path, trust_remote_code: bool) -> None:
    """Names and pieces are the whole's: transformers knows how to make the language model's own of them."""
    model = pretrained(AutoModelForCausalLM, folder, trust_remote_code=trust_remote_code, dtype="auto")
    aside = folder / "language_model"
    model.save_pretrained(aside)
    for file in [*weight_files(folder), folder / INDEX_NAME]:
        file.unlink(missing_ok=True)
    for file in aside.iterdir():
        file.replace(folder / file.name)
    shutil.rmtree(aside)
