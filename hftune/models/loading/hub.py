"""Whether the Hub can be asked. Its own client tries again for about a minute before it gives up."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import constants

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
