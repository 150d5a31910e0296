"""Files that hftune adds to: logs, locks, lines of figures. Imported by what errors are printed with, and so alone."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_own(file: Path) -> BinaryIO:
    """A file opened to write to its end, and made where there is none.

    A link is not followed, and a file with a second name (a hard link) is somebody else's as well.

    Raises:
        OSError: From the system; EMLINK for a second name, ENXIO for what is no file.
    """
    handle = os.open(file, _FLAGS, 0o666)
    about = os.fstat(handle)  # of what was opened, whatever has that name by now
    number = errno.ENXIO if not stat.S_ISREG(about.st_mode) else errno.EMLINK if about.st_nlink > 1 else 0
    if number:
        os.close(handle)
        raise OSError(number, os.strerror(number), str(file))
    return open(file, "a+b", opener=lambda *_: handle)  # by the file's name, which messages tell
