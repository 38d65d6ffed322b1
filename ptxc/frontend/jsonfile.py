"""From a file, plain or gzip, to the JSON value in it, within bounds."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import zlib
from collections import Counter
from typing import Any, BinaryIO

from ptxc.errors import InputError
from ptxc.frontend.vocabulary import shown

#: How large a file may be, unpacked. Emmy's largest real kernel is 437 kB.
MAX_BYTES = 32 << 20

_GZIP = b"\x1f\x8b"
_HINT = "give a JSON file of Kernel IR, plain or gzip, or - for standard input"


def read_json(source: str | os.PathLike[str] | BinaryIO) -> Any:
    """The JSON value in a path, ``-`` for standard input, or a binary file.

    Raises InputError, without the file's name, for what cannot be read or is no JSON, and for JSON that Emmy
    does not write: an object that names a key twice, a number of thousands of digits.
    """
    data = _contents(source)
    if not data.strip():
        raise InputError("the file is empty", hint=_HINT)
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=distinct_members)
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text at byte {error.start}", hint=_HINT) from error
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error}", hint=_HINT) from error
    except ValueError as error:
        raise InputError("the JSON holds a number of thousands of digits", hint=_HINT) from error
    except RecursionError as error:
        raise InputError("the JSON nests too deeply", hint=_HINT) from error


def file_name(source: object) -> str:
    """What to call ``source`` in an error: empty for what has no name."""
    if isinstance(source, str | os.PathLike):
        name = "<stdin>" if source == "-" else os.fsdecode(source)
    else:
        name = str(getattr(source, "name", ""))
    return name if name.isprintable() else repr(name)


def read_bytes(source: str | os.PathLike[str] | BinaryIO) -> bytes:
    """The bytes of a path, ``-`` for standard input, or a binary file, packed or not as they are. Raises InputError."""
    try:
        if source == "-":
            return _drain(standard_input())
        if isinstance(source, str | os.PathLike):
            with open(source, "rb") as file:
                return _drain(file)
        return _drain(source)
    except (OSError, ValueError) as error:
        # ValueError: a path with a null character, a file that is closed.
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read the file: {reason}", hint=_HINT) from error


def standard_input() -> BinaryIO:
    """Standard input. Raises InputError where it is closed."""
    if sys.stdin is None:
        raise InputError("standard input is closed", hint="name a file, or redirect one to standard input")
    return sys.stdin.buffer


def _contents(source: str | os.PathLike[str] | BinaryIO) -> bytes:
    """The bytes of a file, unpacked."""
    data = read_bytes(source)
    if not data.startswith(_GZIP):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as unpacked:
            return _drain(unpacked)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"the gzip data is damaged: {error}", hint="make the file again") from error


def _drain(file: BinaryIO | gzip.GzipFile) -> bytes:
    """Everything in ``file``, if that is no more than MAX_BYTES."""
    chunks: list[bytes] = []
    room = MAX_BYTES
    while chunk := file.read(room + 1):
        if not isinstance(chunk, bytes):
            raise InputError("the file is open as text", hint="open it in binary mode")
        chunks.append(chunk)
        room -= len(chunk)
        if room < 0:
            hint = "give one kernel a file, as Emmy dumps them"
            raise InputError(f"the file holds more than {MAX_BYTES >> 20} MiB", hint=hint)
    return b"".join(chunks)


def distinct_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys differ; Python's parser keeps the last of equal ones. Raises InputError."""
    members = dict(pairs)
    if len(members) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise InputError(f"a JSON object names {shown(twice)} twice", hint="keep one of the two")
    return members
