"""Where results are kept, how many, and by which code they were made."""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache
from importlib import metadata

from ptxc import version
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
        raise UsageError(f"{SIZE} is {text[:40]!r}, which is no size", hint="it is bytes, or as in 500M or 2G")
    size = float(match[1]) * (1 << _UNITS[match[2].upper()])
    if size >= 1 << 63:
        raise UsageError(f"{SIZE} is more bytes than there are", hint="it is bytes, or as in 500M or 2G")
    return int(size)


#: Seconds by which the clock of a file system may be behind.
_SLACK = 0.1


@cache
def code_version() -> str:
    """A digest of what turns a kernel into PTX: ptxc's source files, whether they are compiled, and the versions of the
    packages that it builds on. It is taken once a process, in some milliseconds.

    Where a source has changed since the process began to load ptxc, nobody knows which code it runs: then the digest is
    one that no other process has.
    """
    found, changed = _digest_of(os.path.dirname(os.path.abspath(version.__file__)))
    return found if changed < version.LOADED - _SLACK else digest(found, os.urandom(32))


def _digest_of(root: str) -> tuple[str, float]:
    """The digest of the sources in a folder and the versions, and when a source changed last."""
    build = "compiled" if version.is_compiled() else "pure Python"
    parts: list[str | bytes] = [version.__version__, build, *map(metadata.version, ("emmy-ml", "networkx", "numpy"))]
    latest = 0.0
    for folder, folders, files in os.walk(root, followlinks=True):  # ptxc/ir and ptxc/passes may be links
        folders.sort()
        for file in sorted(files):
            if file.endswith(".py"):
                path = os.path.join(folder, file)
                with open(path, "rb") as source:
                    stat = os.fstat(source.fileno())
                    parts += [os.path.relpath(path, root), hashlib.sha256(source.read()).digest()]
                latest = max(latest, stat.st_mtime, stat.st_ctime)  # a file that takes another's place keeps its time
    return digest(*parts), latest
