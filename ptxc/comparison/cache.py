"""What compilers made, kept on disk by what they made it from."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ptxc.errors import UsageError


def default_folder() -> Path:
    """``ptxc/compare`` where the user's caches are."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ptxc", "compare")


def digest(*parts: str | bytes) -> str:
    """A name for some texts."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "little") + data)
    return hashed.hexdigest()


class Cache:
    """A folder of JSON values, a gzip file each. A file is there whole or not at all, whatever ends the process."""

    def __init__(self, folder: Path) -> None:
        """Raises UsageError where the folder cannot be made."""
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder {str(folder)!r}: {error.strerror}") from error

    def find(self, key: str, make: Callable[[], Any]) -> Any:
        """The value that is kept under ``key``, a digest; else what ``make`` gives, which is kept from now on."""
        path = self._folder / f"{key}.json.gz"
        with suppress(OSError, ValueError, EOFError):
            return json.loads(gzip.decompress(path.read_bytes()))
        value = make()
        self._keep(path, value)
        return value

    def _keep(self, path: Path, value: Any) -> None:
        try:
            handle, name = tempfile.mkstemp(dir=self._folder)
            try:
                with open(handle, "wb") as file:
                    file.write(gzip.compress(json.dumps(value).encode(), 5, mtime=0))
                os.replace(name, path)
            except BaseException:
                os.unlink(name)
                raise
        except OSError as error:
            raise UsageError(f"cannot write to the folder {str(self._folder)!r}: {error.strerror}") from error
