"""A folder of results that any number of processes read and write at once, without locks.

Each entry is a file, named after the digest of what it was made from. It is written under another name and renamed
when it is complete, so that under its own name it is whole or absent, whoever is killed when. Its first line holds
the digest of its name and of the rest, so that damage shows: a damaged entry is removed and counts as absent. Nothing
waits for anyone: two processes that miss the same entry both make it, and it does not matter whose stays.

The size of all entries is bounded. A file's time of modification is that of its last use; when a writer finds too much
in the folder, it removes what was not used for longest. It looks once for every so many bytes that are written, by
whichever process: chance decides, so that processes need to know nothing of each other.

An entry holds JSON and bytes. Nothing in it is ever evaluated.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ptxc.errors import StoreWarning

#: What an entry's first line begins with; the number is that of the form that this page describes.
_MAGIC = b"ptxc-store 1 "
_HEADER = len(_MAGIC) + 64 + 1

#: An entry's name, and that of one being written.
_NAME = re.compile(r"([0-9a-f]{64})\.([a-z]+)")
_UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.new")
_SHARD = re.compile("[0-9a-f]{2}")

#: Seconds after which nobody is still writing an entry: who began it was killed.
_ABANDONED = 3600.0

#: A writer looks at the folder once for this share of its limit that is written. It removes entries where more than
#: the second share is used, until no more than the third is.
_LOOK, _FULL, _TRIMMED = 1 / 64, 15 / 16, 7 / 8

#: What reading an entry of another form raises.
UNREADABLE = (TypeError, KeyError, ValueError, AttributeError)

#: Folders that a warning named already.
_complained: set[str] = set()


class Value(NamedTuple):
    """What an entry holds."""

    #: What JSON can hold; ``name`` and ``target`` are what `ptxc cache list` shows.
    facts: dict[str, Any]
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry's file."""

    path: str
    key: str
    #: What sort of result it is.
    kind: str
    #: Bytes.
    size: int
    #: When it was last used, in seconds since 1970.
    used: float


def digest(*parts: str | bytes) -> str:
    """A key for what ``parts`` say, in this order."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "little") + data)
    return hashed.hexdigest()


class Store:
    """The entries in a folder, which is made when something is kept. Keys are digests, kinds are lower-case words.

    Nothing here raises for what is wrong with the folder or with an entry: then an entry is not there, and a
    StoreWarning says once why nothing can be kept.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int) -> None:
        """``limit`` is in bytes; with 0 nothing is kept and nothing is found."""
        self.folder = os.fspath(folder)
        self.limit = limit

    # ------------------------------------------------------------------------------------------------------- entries

    def get(self, kind: str, key: str) -> Value | None:
        """The entry ``key`` of ``kind``, which counts as used now; None where there is none, or a damaged one."""
        if not self.limit:
            return None
        path = self._path(kind, key)
        value = self._read(path)
        if value is not None:
            with suppress(OSError):
                os.utime(path)
        return value

    def put(self, kind: str, key: str, value: Value) -> None:
        """Keep ``value`` as the entry ``key`` of ``kind``, in place of one that is there."""
        path = self._path(kind, key)
        content = _packed(os.path.basename(path), value)
        if len(content) > self.limit:
            return
        try:
            _write(path, content)
        except OSError as error:
            self._complain(error)
            return
        if int.from_bytes(os.urandom(4)) * _LOOK * self.limit < len(content) << 32:
            self.trim()

    def find(
        self,
        kind: str,
        key: str,
        make: Callable[[], Any],
        *,
        name: str = "",
        target: str = "",
        read: Callable[[Any], Any] = lambda value: value,
    ) -> Any:
        """The JSON value that is kept under ``key``; else what ``make`` gives, which is kept from now on.

        It is what ``read`` makes of the value; an entry that ``read`` takes for none of its own is not there.
        """
        found = self.get(kind, key)
        if found is not None:
            with suppress(*UNREADABLE):
                return read(found.facts["value"])
        value = make()
        self.put(kind, key, Value({"name": name, "target": target, "value": value}))
        return read(value)

    # ---------------------------------------------------------------------------------------------- looking after them

    def entries(self) -> Iterator[Entry]:
        """The entries that there are, whole or damaged, in no order."""
        for path, name, stat in self._files():
            if match := _NAME.fullmatch(name):
                yield Entry(path, match[1], match[2], stat.st_size, stat.st_mtime)

    def read(self, entry: Entry) -> Value | None:
        """What an entry holds, without counting as its use; None for a damaged one, which is removed, or a lost one."""
        return self._read(entry.path)

    def remove(self, kinds: Collection[str] = (), unused_for: float = 0.0) -> list[Entry]:
        """Remove all entries, or those of ``kinds``, that were not used for so many seconds; gives what went."""
        self._sweep()
        latest = time.time() - unused_for
        chosen = [
            entry
            for entry in self.entries()
            if (not kinds or entry.kind in kinds) and (not unused_for or entry.used <= latest)
        ]
        return [entry for entry in chosen if _remove(entry.path)]

    def verify(self) -> tuple[int, list[Entry]]:
        """Check every entry: how many there are, and the damaged ones, which are removed."""
        self._sweep()
        count, damaged = 0, []
        for entry in self.entries():
            content = _content(entry.path)
            if content is None:  # it was removed meanwhile
                continue
            count += 1
            if _unpacked(os.path.basename(entry.path), content) is None:
                _remove(entry.path)
                damaged.append(entry)
        return count, damaged

    def trim(self) -> None:
        """Remove the entries that were not used for longest, where there is too much; and what nobody will finish."""
        total = self._sweep()
        entries = list(self.entries())
        total += sum(entry.size for entry in entries)
        if total <= _FULL * self.limit:
            return
        entries.sort(key=lambda entry: entry.used)
        for entry in entries:
            if total <= _TRIMMED * self.limit:
                break
            _remove(entry.path)
            total -= entry.size

    # ------------------------------------------------------------------------------------------------------- files

    def _path(self, kind: str, key: str) -> str:
        return f"{self.folder}{os.sep}{key[:2]}{os.sep}{key}.{kind}"

    def _read(self, path: str) -> Value | None:
        """What a file holds; a damaged one is removed."""
        content = _content(path)
        if content is None:
            return None
        value = _unpacked(os.path.basename(path), content)
        if value is None:
            _remove(path)
        return value

    def _files(self) -> Iterator[tuple[str, str, os.stat_result]]:
        """The path, name and state of every file that may be the store's: others keep things in folders, too."""
        for shard in _scan(self.folder):
            if not _SHARD.fullmatch(shard.name):
                continue
            for file in _scan(shard.path):
                with suppress(OSError):  # it has gone
                    if file.is_file(follow_symlinks=False):
                        yield file.path, file.name, file.stat(follow_symlinks=False)

    def _sweep(self) -> int:
        """Remove what killed processes left unfinished; the bytes of what is being written now."""
        unfinished = [(path, stat) for path, name, stat in self._files() if _UNFINISHED.fullmatch(name)]
        now = time.time()
        abandoned = {path for path, stat in unfinished if now - stat.st_mtime > _ABANDONED and _remove(path)}
        return sum(stat.st_size for path, stat in unfinished if path not in abandoned)

    def _complain(self, error: OSError) -> None:
        if self.folder not in _complained:
            _complained.add(self.folder)
            reason = error.strerror or type(error).__name__
            what = f"results are not kept, as the folder {self.folder!r} cannot be written: {reason}"
            warnings.warn(StoreWarning(what), stacklevel=2)


def _content(path: str) -> bytes | None:
    """The bytes of a file; None where it is not there or cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _packed(name: str, value: Value) -> bytes:
    """An entry's content: a line that shows damage, a line of JSON, bytes."""
    body = json.dumps(value.facts).encode() + b"\n" + value.data
    return _MAGIC + _checksum(name, body) + b"\n" + body


def _unpacked(name: str, content: bytes) -> Value | None:
    """What an entry's content says; None for one that is not what was written under this name."""
    body = content[_HEADER:]
    if content[:_HEADER] != _MAGIC + _checksum(name, body) + b"\n":
        return None
    facts, _, data = body.partition(b"\n")
    return Value(json.loads(facts), data)


def _checksum(name: str, body: bytes) -> bytes:
    hashed = hashlib.sha256(name.encode() + b"\n")
    hashed.update(body)
    return hashed.hexdigest().encode()


def _write(path: str, content: bytes) -> None:
    """Make ``path`` a file of this content, at once. Raises OSError, and then leaves nothing."""
    try:
        _write_into_folder(path, content)
    except FileNotFoundError:  # the folder is not there yet, or was removed meanwhile
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _write_into_folder(path, content)


def _write_into_folder(path: str, content: bytes) -> None:
    """The same where the folder is there."""
    new = os.path.join(os.path.dirname(path), f".{os.urandom(8).hex()}.new")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(file, "wb") as stream:
            stream.write(content)
        os.replace(new, path)
    except BaseException:
        _remove(new)
        raise


def _remove(path: str) -> bool:
    """Remove a file; whether it was there and could be."""
    try:
        Path(path).unlink()
    except OSError:
        return False
    return True


def _scan(folder: str) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing where it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
