"""The results of a batch in its folder: a line of JSON for each kernel of each candidate, and the files that it names.

Lines are only ever added, and are on disk before the batch counts a candidate as done; the files that a line names are
complete before it is written. What a kill leaves is a last line that is torn, or the first lines of a candidate of
several kernels: both go when the folder is opened again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from ptxc.batching.candidates import Task
from ptxc.batching.job import Built
from ptxc.errors import InputError, UsageError, room_for

RESULTS = "results.jsonl"

#: A line, as JSON has it.
type Record = dict[str, Any]

#: A candidate by what results call it and by its digest.
type _Name = tuple[str, str]


def results(folder: str | os.PathLike[str]) -> list[Record]:
    """The results of a batch, of each candidate those that count: the last. Raises InputError."""
    try:
        with open(Path(folder, RESULTS), "rb") as file:
            found = {name: records for name, records, _, _ in _groups(file)}
    except OSError as error:
        raise InputError(f"cannot read the results: {error.strerror}", file=str(Path(folder, RESULTS))) from error
    return [record for records in found.values() for record in records]


class Journal:
    """The folder of a batch, of one process at a time."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Makes the folder, or goes on with what is in it. Raises UsageError."""
        self._folder = Path(folder)
        self._path = self._folder / RESULTS
        #: Where the lines of candidates are, by their digests; and statuses, by their names too.
        self._places: dict[str, tuple[int, int]] = {}
        self._statuses: dict[_Name, str] = {}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = open(self._path, "a+b")  # noqa: SIM115
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._lock()
            self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes with this process
        except OSError as error:
            raise UsageError(
                f"another batch writes to {str(self._folder)!r}", hint="give --out another name"
            ) from error

    def _read(self) -> None:
        """Learn what is done, and cut off what was not finished."""
        end = 0
        self._file.seek(0)
        for name, records, start, end in _groups(self._file):
            self._note(name, records, start, end)
        self._file.truncate(end)

    def _note(self, name: _Name, records: Sequence[Record], start: int, end: int) -> None:
        self._places[name[1]] = (start, end)
        self._statuses[name] = next((record["status"] for record in records if record["status"] != "ok"), "ok")

    def status(self, task: Task) -> str | None:
        """The status of a candidate, ``ok`` or the first of its kernels that is not; None for one that is to be done,
        also where a file of it is not there any more."""
        found = self._statuses.get((task.name, task.digest))
        return found if found is not None and self._has_files(task.digest) else None

    def known(self, task: Task) -> list[Built] | None:
        """The outcome of a candidate that is the same but for its name, as far as lines tell it."""
        if task.digest not in self._places or not self._has_files(task.digest):
            return None
        records = self._records(task.digest)
        return [Built({key: record[key] for key in record if key not in _OURS}) for record in records]

    def _records(self, digest: str) -> list[Record]:
        start, end = self._places[digest]
        lines = os.pread(self._file.fileno(), end - start, start).splitlines()
        return [json.loads(line) for line in lines]

    def _has_files(self, digest: str) -> bool:
        names = [record[kind] for record in self._records(digest) for kind in ("ptx", "cubin") if kind in record]
        return all(_size(self._folder / name) for name in names)

    def add(self, outcomes: Iterable[tuple[Task, Sequence[Built]]]) -> None:
        """Keep outcomes: of each the candidate, and what became of its kernels. Raises UsageError."""
        start = self._file.seek(0, os.SEEK_END)
        try:
            for task, outcome in outcomes:
                records = [_record(task, built, len(outcome), self._keep(built)) for built in outcome]
                text = b"".join(json.dumps(record).encode() + b"\n" for record in records)
                self._file.write(text)
                self._note((task.name, task.digest), records, start, start + len(text))
                start += len(text)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> UsageError:
        what = f"cannot write to the folder {str(self._folder)!r}: {error.strerror}"
        return UsageError(what, hint=room_for(error))

    def _keep(self, built: Built) -> Record:
        """Write the files of an outcome; their names, for its line."""
        names = {}
        for kind, data in (("ptx", built.ptx.encode()), ("cubin", built.cubin)):
            if data:
                names[kind] = f"{built.facts['key']}.{kind}"
                _write(self._folder / names[kind], data)
        return names


#: What a line says beside the facts of a kernel.
_OURS = ("input", "candidate", "kernels")


def _record(task: Task, built: Built, kernels: int, files: Record) -> Record:
    return {"input": task.name, "candidate": task.digest, "kernels": kernels, **built.facts, **files}


def _groups(file: IO[bytes]) -> Iterator[tuple[_Name, list[Record], int, int]]:
    """The candidates that are whole: names, lines, and where these begin and end.

    Raises InputError for a line that is no result, unless it is the last: a kill leaves one that is torn.
    """
    start = end = 0
    group: list[Record] = []
    for number, line in enumerate(file, 1):
        record = _parsed(line)
        if record is None or (group and _name(record) != _name(group[0])):
            if file.readline():
                hint = "remove the line, and what belongs to it is made again"
                raise InputError(f"line {number} is no result of a batch", hint=hint, file=file.name)
            return
        group.append(record)
        end += len(line)
        if len(group) == record["kernels"]:
            yield _name(record), group, start, end
            start, group = end, []


def _parsed(line: bytes) -> Record | None:
    """The result that a line is; None for one that is none."""
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    is_whole = isinstance(record, dict) and {"input", "candidate", "kernels", "status"} <= set(record)
    return record if is_whole else None


def _name(record: Record) -> _Name:
    return record["input"], record["candidate"]


def _write(path: Path, data: bytes) -> None:
    """Make ``path`` a file of these bytes, at once."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_bytes(data)
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
