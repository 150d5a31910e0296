"""What libraries find out about their own installation, kept: a second of every start."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import marshal
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from hftune.user_cache import cache_folder, write_whole

SEARCHES = "transformers.utils.import_utils"
"""The module whose `create_import_structure_from_path` reads each of transformers' 2,000 model files for its names."""


def look_once() -> None:
    """Have what libraries find out about their own installation found out once, not twice a process and in each anew.

    transformers 5.23 reads all of its model files when it is imported and again for `transformers.models` (0.4 s each);
    what it found is kept in hftune's cache as long as the installation is the same. transformers and TRL ask for the
    distributions of all packages (0.1 s each); the answer is kept as long as the folders of packages are the same.
    """
    asked = importlib.metadata.packages_distributions
    if "transformers" in sys.modules or hasattr(asked, "cache_info"):
        return
    importlib.metadata.packages_distributions = functools.cache(functools.partial(_distributions, asked))
    sys.meta_path.insert(0, _Watch())


def _distributions(asked: Callable[[], Any]) -> Any:
    """`packages_distributions()`, kept on disk: pip changes a folder's time with whatever it installs there."""
    folders = [os.path.abspath(entry) for entry in sys.path if os.path.isdir(entry or ".")]
    times = [os.stat(folder).st_mtime_ns for folder in folders]
    name = hashlib.sha256("\n".join(folders).encode()).hexdigest()[:32]
    file = cache_folder() / "imports" / f"{name}.distributions"
    with suppress(OSError, EOFError, ValueError, TypeError):
        kept, found = marshal.loads(file.read_bytes())
        if kept == times:
            return found
    found = {package: list(names) for package, names in asked().items()}
    with suppress(OSError, ValueError):  # no cache, no harm
        write_whole(file, marshal.dumps((times, found)))
    return found


class _Watch(MetaPathFinder):
    """Finds one module as Python does, and has the function in it replaced once it has been loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != SEARCHES:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        loader: Any = spec and spec.loader
        if loader:
            load = loader.exec_module

            def load_and_replace(module: Any) -> None:
                load(module)
                with suppress(AttributeError):
                    module.create_import_structure_from_path = _kept(module.create_import_structure_from_path)

            loader.exec_module = load_and_replace
        return spec


def _kept(search: Callable[[str | Path], Any]) -> Callable[[str | Path], Any]:
    """`search`, whose answer for the folder of all models is kept on disk."""
    once = functools.cache(installation)

    @functools.wraps(search)
    def found(module_path: str | Path) -> Any:
        folder = Path(module_path)
        folder = folder.parent if folder.suffix == ".py" else folder
        if folder.name != "models" or folder.parent.name != "transformers":
            return search(module_path)
        key = once("transformers", folder)
        if key is None:
            return search(module_path)
        file = cache_folder() / "imports" / f"{key}.marshal"
        with suppress(OSError, EOFError, ValueError, TypeError):
            return marshal.loads(file.read_bytes())
        structure = search(module_path)
        with suppress(OSError, ValueError):  # no cache, no harm
            write_whole(file, marshal.dumps(structure))
        return structure

    return found


def installation(package: str, folder: Path) -> str | None:
    """A name for what pip installed; None for sources in the making, whose files change under the same version."""
    distribution = importlib.metadata.distribution(package)
    source = json.loads(distribution.read_text("direct_url.json") or "{}")
    installed = Path(str(distribution.locate_file(f"{package}/models")))
    if source.get("dir_info", {}).get("editable") or not installed.is_dir() or not installed.samefile(folder):
        return None
    folders = [str(folder), *(entry.path for entry in os.scandir(folder) if entry.is_dir())]
    files = [entry for one in folders for entry in os.scandir(one)]  # 3,000; looking at all of them takes 15 ms
    newest = max(entry.stat().st_mtime_ns for entry in files)
    parts = (package, distribution.version, str(folder), sys.version, str(len(files)), str(newest))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
