"""The candidates of a batch, read one at a time.

A line of JSON lines is a graph, or an object with a graph or the name of a file, and options:

    {"file": "k.ir.json", "target": "sm_90", "options": {"math": "fast"}}
    {"graph": {"nodes": ...}, "name": "tile 64x128"}

Files are named as seen from the folder of the lines. What else such an object has is its writer's, and ignored.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from ptxc.compilation import Options, make_options
from ptxc.corpus import entries
from ptxc.errors import InputError, UsageError
from ptxc.store import code_version, digest

#: Standard input, as JSON lines.
STDIN = "-"
_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A graph of Kernel IR, and how it is to be compiled."""

    #: Emmy's ``Graph``, a path, the graph's JSON as bytes (plain or gzip), or the mapping that JSON gave; an InputError
    #: where there is none.
    source: Any
    #: Fields of :class:`ptxc.compilation.Options`; they go before those of the batch.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: What results call it; the path, or ``#`` and its number where it has no name.
    name: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A candidate as plain data, for a worker."""

    name: str
    source: bytes
    options: Options
    #: Whether ptxas is run.
    assemble: bool
    #: How many CTAs are executed and compared, as for `ptxc verify --ctas`; empty for none.
    check: str
    #: That of all that decides the outcome: of equal candidates, one is compiled.
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        options = json.dumps(asdict(replace(self.options, cache=True)), sort_keys=True, default=str)
        found = digest("candidate", code_version(), options, str(self.assemble), self.check, self.source)
        object.__setattr__(self, "digest", found)


def task_of(candidate: Any, number: int, options: Options, assemble: bool, check: str) -> Task:
    """The task for the item ``number`` of a batch, a Candidate or what is the source of one. Raises CompileError."""
    if not isinstance(candidate, Candidate):
        candidate = Candidate(candidate)
    name = name_of(candidate, number)
    chosen = {**asdict(options), **candidate.options}
    if isinstance(chosen["disable"], list):  # JSON has no tuples
        chosen["disable"] = tuple(chosen["disable"])
    try:
        return Task(name, _bytes_of(candidate.source), make_options(chosen), assemble, check)
    except (InputError, UsageError) as error:
        error.at(file=name)
        raise


def name_of(candidate: Any, number: int) -> str:
    """What results call the item ``number`` of a batch."""
    if not isinstance(candidate, Candidate):
        candidate = Candidate(candidate)
    is_path = isinstance(candidate.source, str | os.PathLike)
    return candidate.name or (os.fspath(candidate.source) if is_path else f"#{number}")


def _bytes_of(source: Any) -> bytes:
    """The JSON of a source, as it is or written now. Raises InputError."""
    from ptxc.frontend.jsonfile import read_bytes

    if isinstance(source, str | os.PathLike):
        return read_bytes(source)
    if isinstance(source, bytes):
        return source
    if isinstance(source, InputError):
        raise source
    try:
        graph = source if isinstance(source, Mapping) else source.to_dict()
        return json.dumps(graph, default=str).encode("utf-8", "surrogatepass")
    except (AttributeError, TypeError, ValueError) as error:
        hint = "give Emmy's Graph, a path, JSON as bytes or the mapping that JSON gave"
        raise InputError(f"the source of a candidate cannot be of type {type(source).__name__}", hint=hint) from error


# ---------------------------------------------------------------------------------------------------- what is named


def candidates_in(inputs: Iterable[str], target: str | None = None) -> Iterator[Candidate]:
    """The candidates of files, folders, JSON lines (by the ending ``.jsonl`` or ``.ndjson``, or ``-``), in order.

    ``target`` goes before what the manifest of a folder says, not before what a line says. Raises InputError for an
    input that is not there, or for a manifest that is none.
    """
    for name in inputs:
        if _is_lines(name):
            yield from _lines(name)
        elif os.path.isdir(name):
            yield from _folder(Path(name), target)
        else:
            yield Candidate(name)


def count(inputs: Iterable[str]) -> int | None:
    """How many candidates the inputs have; None where that shows only when they are read. Raises InputError."""
    total = 0
    for name in inputs:
        if name == STDIN or (_is_lines(name) and not os.path.isfile(name)):
            return None
        if _is_lines(name):
            with _opened(name) as file:
                total += sum(1 for line in file if line.strip())
        else:
            total += sum(1 for _ in _folder(Path(name), None)) if os.path.isdir(name) else 1
    return total


def _is_lines(name: str) -> bool:
    return name == STDIN or (name.endswith(_LINES) and not os.path.isdir(name))


def _folder(folder: Path, target: str | None) -> Iterator[Candidate]:
    found = entries(folder, "")
    if not found:
        raise InputError("the folder has no file *.json", hint="name a folder of kernels", file=str(folder))
    for entry in found:
        chosen = target or entry.target
        yield Candidate(str(entry.path), {"target": chosen} if chosen else {})


def _lines(name: str) -> Iterator[Candidate]:
    from ptxc.frontend.jsonfile import standard_input

    with ExitStack() as stack:
        file = standard_input() if name == STDIN else stack.enter_context(_opened(name))
        shown = "<stdin>" if name == STDIN else name
        try:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _line(line, shown, number)
        except OSError as error:
            raise _unreadable(error, shown) from error


def _line(line: bytes, file: str, number: int) -> Candidate:
    """The candidate of a line; for a line that says none, one whose source is the error."""
    from ptxc.frontend.jsonfile import read_json

    place = f"{file}:{number}"
    try:
        said = read_json(io.BytesIO(line))
    except InputError as error:
        return Candidate(error, {}, place)
    if isinstance(said, dict) and "nodes" in said:
        return Candidate(line, {}, place)
    name = str(said.get("name") or place) if isinstance(said, dict) else place
    if (wrong := _wrong(said)) is not None:
        return Candidate(wrong, {}, name)
    options = dict(said.get("options", {}))
    if "target" in said:
        options.setdefault("target", said["target"])
    if "file" in said:
        return Candidate(os.path.join(os.path.dirname(file), said["file"]), options, name)
    return Candidate(said["graph"], options, name)


#: What the members of a line are, and what makes them so.
_MEMBERS: dict[str, tuple[type, str]] = {
    "file": (str, "the name of a file"),
    "graph": (dict, "the JSON object of a graph"),
    "options": (dict, "a JSON object of options"),
}


def _wrong(said: Any) -> InputError | None:
    """What is wrong with a line that names no candidate, or two."""
    from ptxc.frontend.vocabulary import shown

    hint = 'a line is a graph, or as in {"file": "k.ir.json", "options": {"math": "fast"}}'
    if not isinstance(said, dict):
        return InputError(f"a JSON object is needed here, not {shown(said)}", hint=hint)
    for name, (type, what) in _MEMBERS.items():
        if name in said and (not isinstance(said[name], type) or said[name] == ""):
            return InputError(f"{name} is {what}, not {shown(said[name])}", hint=hint)
    given = [name for name in ("file", "graph") if name in said]
    if len(given) != 1:
        return InputError("both file and graph are given" if given else "neither file nor graph is given", hint=hint)
    return None


def _opened(name: str) -> IO[bytes]:
    try:
        return open(name, "rb")
    except OSError as error:
        raise _unreadable(error, name) from error


def _unreadable(error: OSError, name: str) -> InputError:
    return InputError(f"cannot read the file: {error.strerror}", hint="name JSON lines", file=name)
