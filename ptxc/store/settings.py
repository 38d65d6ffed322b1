"""Where results are kept, how many, and by which code they were made."""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache
from importlib.metadata import version

from ptxc.errors import UsageError
from ptxc.store.folder import Store, digest

FOLDER, SIZE = "PTXC_CACHE_DIR", "PTXC_CACHE_SIZE"

#: Bytes that all entries may have, where nothing else is said.
DEFAULT_LIMIT = 1 << 30

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def open_store(kept: bool = True) -> Store:
    """The user's store: its folder is ``PTXC_CACHE_DIR``, its limit ``PTXC_CACHE_SIZE``. Unless ``kept``, one that
    keeps nothing.

    Raises UsageError for a limit that is no size.
    """
    return _store(os.environ.get(FOLDER, ""), os.environ.get(SIZE, "") if kept else "0")


@cache
def _store(folder: str, size: str) -> Store:
    return Store(folder or default_folder(), limit_of(size) if size else DEFAULT_LIMIT)


def default_folder() -> str:
    """The folder for ptxc where this platform has its users' caches."""
    from platformdirs import user_cache_dir

    return user_cache_dir("ptxc", appauthor=False)


def limit_of(text: str) -> int:
    """The bytes that ``text`` says, as in ``1G`` or ``500M``. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise UsageError(f"{SIZE} is {text!r}, which is no size", hint="it is bytes, or as in 500M or 2G")
    return int(float(match[1]) * (1 << _UNITS[match[2].upper()]))


@cache
def code_version() -> str:
    """A digest of what turns a kernel into PTX: ptxc's source files, and the versions of the packages that it builds
    on. It is taken once a process, in some milliseconds."""
    import ptxc

    root = os.path.dirname(os.path.abspath(ptxc.__file__))
    parts: list[str | bytes] = [ptxc.__version__, version("emmy-ml"), version("networkx"), version("numpy")]
    for folder, folders, files in os.walk(root, followlinks=True):  # ptxc/ir and ptxc/passes may be links
        folders.sort()
        for file in sorted(files):
            if file.endswith(".py"):
                path = os.path.join(folder, file)
                with open(path, "rb") as source:
                    parts += [os.path.relpath(path, root), hashlib.sha256(source.read()).digest()]
    return digest(*parts)
