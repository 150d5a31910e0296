"""Models, configs and tokenizers by name, for all of hftune: code that comes with a model runs only with its flag.

transformers asks on the standard input where nobody has said whether such code may run, and a piped `y` is an answer.
Here every caller has to say, and nobody is asked, not by a library on its own either.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import constants

from hftune.compat.patches import never_ask_about_code
from hftune.errors import ArgumentError, ManifestError, shown
from hftune.logging import notice
from hftune.on_demand import on_demand

# A Hub that needs longer for a handshake is as good as none.
_PROBE_SECONDS = 5.0


def hub_is_silent(name: str | Path | None) -> bool:
    """Whether `name` is on the Hub if it is anywhere, and the Hub, which may be asked, does not answer."""
    return not os.path.exists(str(name)) and not constants.HF_HUB_OFFLINE and not hub_answers(constants.ENDPOINT)


@functools.cache
def hub_answers(endpoint: str) -> bool:
    """Whether something listens at the Hub's address; asked once a process."""
    # Behind a proxy a direct connection says nothing.
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    address = urlsplit(endpoint)
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), timeout=_PROBE_SECONDS).close()
    except OSError:
        return False
    return True


_FIX = "copy or download it again; weights that are a program (a pickle) are not loaded: save them as safetensors"
LANGUAGE_MODELS = (
    "AutoModelForCausalLM",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
)
"""Classes that stand for whatever loads all of a checkpoint."""
_OF_SHAPE = (AssertionError, AttributeError, LookupError, NotImplementedError, TypeError)
"""What Python and libraries raise of a config's or a tokenizer's values that nobody looked at before."""
_REFUSED = ("trust_remote_code=True", "execute custom code")
"""What transformers' errors say where code was not allowed to run."""


@contextmanager
def reporting_damage(name: str | Path | None, *, shapes: bool = True) -> Iterator[None]:
    """In the block, what a library raises of damaged files, or of files of another shape, becomes the one message.

    Args:
        name: Of the folder or file.
        shapes: Also what is raised of values that the files should not hold.

    Raises:
        ManifestError: The files are damaged, weights are a program, or the libraries here cannot use what they say.
    """
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    damaged = (EOFError, SafetensorError, StrictDataclassError, UnpicklingError)
    try:
        yield
    except Exception as error:
        said = shown(error, 160) or type(error).__name__
        # The tokenizers package, written in Rust, has one exception for everything: Exception itself.
        if type(error) is Exception or isinstance(error, damaged):
            raise ManifestError(f"{name} cannot be read: {said}", place=str(name), fix=_FIX) from error
        if isinstance(error, ImportError):
            cause = f"{name} needs a package that is not here: {said}"
            raise ManifestError(cause, place=str(name), fix="install it, or give a model that needs none") from error
        # RuntimeError itself: its kinds are of devices, memory and connections.
        if shapes and (type(error) is RuntimeError or isinstance(error, _OF_SHAPE)):
            cause = f"the files of {name} have another shape than is read here: {type(error).__name__}: {said}"
            raise ManifestError(cause, place=str(name), fix=_FIX) from error
        raise


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """In the block transformers does not report on what it loads: what matters of it is said, or an error, here."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def pretrained(auto: Any, name: str | Path | None, *, trust_remote_code: bool, **given: Any) -> Any:
    """`auto.from_pretrained(name, ...)`.

    Args:
        auto: `AutoTokenizer`, `AutoConfig`, `AutoModelForCausalLM` or their like.
        name: A folder or a name of the Hub.
        trust_remote_code: As the flag of that name says.

    Raises:
        ArgumentError: It cannot be loaded without running its own code.
        ManifestError: Its files are damaged.
    """
    # Here: merging starts without transformers.
    from transformers.integrations import is_deepspeed_zero3_enabled

    never_ask_about_code()
    if "local_files_only" not in given and hub_is_silent(name):
        notice(f"{constants.ENDPOINT} does not answer: {name} is looked for in the cache")
        given["local_files_only"] = True
    try:
        # Under ZeRO-3 the same errors come of architectures that cannot be loaded in parts, which the caller says.
        with reporting_damage(name, shapes=not is_deepspeed_zero3_enabled()):
            trusted = bool(trust_remote_code)
            if getattr(auto, "__name__", "") in LANGUAGE_MODELS and not given.get("gguf_file"):
                return on_demand("hftune.models.loading.whole:load_whole")(auto, name, trusted, given)
            return auto.from_pretrained(name, trust_remote_code=trusted, **given)
    except ValueError as error:
        _explain(error, name)
        raise


def from_config(auto: Any, config: Any, *, trust_remote_code: bool, **given: Any) -> Any:
    """`auto.from_config(config, ...)`, likewise."""
    never_ask_about_code()
    if getattr(auto, "__name__", "") in LANGUAGE_MODELS:
        auto = on_demand("hftune.models.loading.whole:loader_of")(auto, config)
    try:
        return auto.from_config(config, trust_remote_code=bool(trust_remote_code), **given)
    except ValueError as error:
        _explain(error, getattr(config, "name_or_path", "") or "the config")
        raise


def _explain(error: ValueError, name: str | Path | None) -> None:
    if any(sign in str(error) for sign in _REFUSED):
        raise ArgumentError(
            f"{name} cannot be loaded without running Python code that comes with it",
            place="--trust_remote_code",
            fix="read that code, and add --trust_remote_code True if you trust whoever wrote it; or name another model",
        ) from error
