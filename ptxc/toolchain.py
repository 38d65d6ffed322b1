"""NVIDIA's command-line tools: where they are, and `ptxas`, which turns PTX into machine code and says what it uses.

ptxc needs none of them to compile. With ptxas it can check its text and report registers, spills and memory.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from ptxc.errors import ToolchainError, WriteError, room_for
from ptxc.target import PTX_RELEASES, TARGETS

#: The Python package that contains ptxas and nvcc, and the last one whose ptxas knows the GPUs before sm_75.
_PACKAGE: Final = "nvidia-cuda-nvcc"
_PACKAGE_12: Final = "nvidia-cuda-nvcc-cu12"

#: The Python packages that contain other tools.
_PACKAGES: Final[Mapping[str, str]] = {"nvdisasm": "nvidia-cuda-nvdisasm"}

#: Why a tool cannot write its files, and how it and what it calls say so: by the exit status, which comes first (for a
#: signal, a shell's or its own), or in words.
_TOO_LARGE: Final = OSError(errno.EFBIG, "File too large")
_SAID_TOO_LARGE: Final = re.compile(
    rf"^(-{signal.SIGXFSZ:d}|{128 + signal.SIGXFSZ}) |file too large|file size limit exceeded", re.IGNORECASE
)
_FULL: Final = OSError(errno.ENOSPC, "No space left on device")
_SAID_FULL: Final = re.compile(
    r"fatal +: internal error: writing file|no space left|disk quota exceeded", re.IGNORECASE
)

#: How many seconds of wall-clock time a call of ptxas may take.
TIME_LIMIT: Final = 600.0


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes of the machine, as ptxas reports it. Sizes are in bytes, for one thread or one block."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int
    #: Constant memory by bank; bank 0 holds the parameters.
    constant_banks: Mapping[int, int]
    barriers: int

    @property
    def constant(self) -> int:
        """Constant memory of all banks together."""
        return sum(self.constant_banks.values())


@dataclass(frozen=True, slots=True)
class Assembly:
    """What ptxas made of a PTX module."""

    cubin: bytes
    #: What each kernel (entry function) uses, by name.
    kernels: Mapping[str, Resources]
    warnings: tuple[str, ...]
    #: The CPU time that ptxas took.
    seconds: float


def find_tool(name: str) -> Path:
    """The executable of CUDA's tool ``name`` (``ptxas``, ``nvdisasm``, ``nvcc``): the first of `find_tools`."""
    return find_tools(name)[0]


def find_tools(name: str) -> list[Path]:
    """The executables of CUDA's tool ``name`` that there are, the one to use first; at least one.

    They are looked for in the environment variable ``PTXC_<NAME>``, on ``PATH``, in ``$CUDA_HOME/bin``, and in NVIDIA's
    wheels where they are installed beside ptxc. A variable that names no executable is an error.
    """
    named = os.environ.get(_variable(name))
    mine = shutil.which(named) if named else None
    if named and not mine:
        raise ToolchainError(f"{_variable(name)} is {named}, which is no executable file")
    found = [mine, *(shutil.which(name, path=folder) for folder in (None, *_folders()))]  # None stands for PATH
    tools = list({os.path.realpath(path): Path(path) for path in reversed(found) if path}.values())[::-1]
    if not tools:
        package = _PACKAGES.get(name, _PACKAGE)
        raise ToolchainError(
            f"{name} was not found: {', '.join(_lacking(name))}, and the Python package {package} is not installed",
            hint=f"get it with: pip install {package}",
        )
    return tools


def tool_versions(name: str) -> str:
    """What the tools of a name say that they are, those included that may stand in. Raises ToolchainError.

    Each is asked once a process, as long as its file stays the same.
    """
    return "\n".join(_version_of(path, path.stat().st_mtime_ns) for path in find_tools(name))


@cache
def _version_of(tool: Path, changed: int) -> str:
    return run_timed([str(tool), "--version"], 30.0)[1]


def _variable(name: str) -> str:
    return f"PTXC_{name.upper()}"


def _folders() -> list[str]:
    """The folders beside ``PATH`` that may have a tool."""
    cuda_home = os.environ.get("CUDA_HOME")
    return [*([f"{cuda_home}/bin"] if cuda_home else []), *map(str, _wheel_folders())]


def _lacking(name: str) -> list[str]:
    """The places that have no tool ``name``, for an error."""
    lacking = [] if os.environ.get(_variable(name)) else [f"${_variable(name)} is not set"]
    lacking += [] if shutil.which(name) else [f"PATH has no {name}"]
    folders = [folder for folder in _folders() if not shutil.which(name, path=folder)]
    lacking += [f"nor has {folder}" if lacking else f"{folder} has no {name}" for folder in folders]
    return lacking + ([] if os.environ.get("CUDA_HOME") else ["$CUDA_HOME is not set"])


def find_ptxas() -> Path:
    """The executable of ptxas: see `find_tool`."""
    return find_tool("ptxas")


def _wheel_folders() -> Iterator[Path]:
    """The folders of programs in NVIDIA's wheels, the newest CUDA first; nothing is imported."""
    spec = importlib.util.find_spec("nvidia")
    for parent in (spec.submodule_search_locations if spec else None) or ():
        # CUDA 13 and later: nvidia/cu13/bin for all packages. CUDA 12: nvidia/cuda_nvcc/bin, a folder each.
        together = Path(parent).glob("cu[0-9]*/bin")
        yield from sorted(together, key=lambda folder: int(folder.parent.name[2:]), reverse=True)
        yield from sorted(Path(parent).glob("cuda_*/bin"))


def assemble(ptx: str, target: str, *, ptxas: Path | None = None, options: Sequence[str] = ()) -> Assembly:
    """Assemble the module ``ptx`` for the GPU ``target`` (``sm_90a``) with ptxas, and say what its kernels use.

    ``options`` are further arguments for ptxas. Without ``ptxas``, a ptxas that does not know the target is passed over
    for the next of `find_tools`: that of CUDA 13 knows no GPU before sm_75, older ones do not know the newest. A
    ToolchainError says why there is none, or quotes what it found wrong in the text; a WriteError, that there is no
    room for what it writes.
    """
    candidates = [ptxas] if ptxas is not None else find_tools("ptxas")
    for candidate in candidates:
        assembly = _assemble_with(candidate, ptx, target, options)
        if assembly is not None:
            return assembly
    raise _unknown_target(target, candidates, ptxas is not None)


def _assemble_with(ptxas: Path, ptx: str, target: str, options: Sequence[str]) -> Assembly | None:
    """What ``ptxas`` makes of the text; None where it does not know the target."""
    with working_folder() as folder:
        source, cubin = folder / "kernel.ptx", folder / "kernel.cubin"
        source.write_text(ptx, encoding="utf-8")
        command = [str(ptxas), "-v", f"-arch={target}", *options, str(source), "-o", str(cubin)]
        status, output, seconds = run_timed(command, TIME_LIMIT)
        output = output.replace(f"{source}, ", "")
        if f"Value '{target}' is not defined for option 'gpu-name'" in output:
            return None
        if status != 0 or not cubin.exists():
            raise _refusal(status, output, ptx, target, ptxas)
        made = cubin.read_bytes()
        if _is_cut_off(made):  # ptxas does not always notice
            raise _without_room(_FULL)
        warnings = tuple(f"line {line}: {what}" if line else what for line, what in _messages("warning", output))
        return Assembly(made, _read_resources(output), warnings, seconds)


def _is_cut_off(cubin: bytes) -> bool:
    """Whether the end of an ELF file is missing, which has its tables there."""
    if not cubin.startswith(b"\x7fELF"):
        return False
    if len(cubin) < 64:
        return True
    programs, sections = struct.unpack_from("<QQ", cubin, 32)
    program_size, program_count, section_size, section_count = struct.unpack_from("<4H", cubin, 54)
    end: int = max(programs + program_size * program_count, sections + section_size * section_count)
    return len(cubin) < end


@contextmanager
def working_folder() -> Iterator[Path]:
    """A folder for the files of a tool, gone at the end. Raises WriteError where they cannot be written."""
    try:
        with tempfile.TemporaryDirectory(prefix="ptxc-") as folder:
            yield Path(folder)
    except OSError as error:
        raise _without_room(error) from error


def _without_room(fault: OSError) -> WriteError:
    """The error for a file of a tool's that cannot be written."""
    place = f" in {tempfile.tempdir!r}" if tempfile.tempdir else ""
    what = f"cannot write temporary files{place}: {fault.strerror or fault}"
    other = "" if fault.errno == errno.EFBIG else "name another folder in TMPDIR"
    return WriteError(what, hint=", or ".join(filter(None, (room_for(fault), other))))


def run_timed(command: Sequence[str], time_limit: float) -> tuple[int, str, float]:
    """Run ``command``: its exit status (negative for a signal), what it printed, its CPU seconds.

    The figure of `subprocess` for the CPU time mixes all children of the process; `os.wait4` tells one child's. Raises
    ToolchainError where the command cannot run or took too long, WriteError where it could not write a file.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, so that the limit ends its children too
        )
    except OSError as error:
        raise ToolchainError(f"{command[0]} does not run: {error.strerror}") from error
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        os.killpg(process.pid, signal.SIGKILL)

    assert process.stdout is not None
    timer = threading.Timer(time_limit, expire)
    timer.start()
    try:
        output = process.stdout.read().decode(errors="replace")
    except BaseException:  # Ctrl-C does not reach the group
        os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        # From here on nothing kills: once wait4 has taken the child, its number may be another process's.
        timer.cancel()
        timer.join()
        process.stdout.close()
        _, wait_status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(wait_status)
    if expired.is_set():
        raise ToolchainError(f"{command[0]} took longer than {time_limit:g} s and was ended")
    for fault, said in ((_TOO_LARGE, _SAID_TOO_LARGE), (_FULL, _SAID_FULL)):
        if process.returncode and said.search(f"{process.returncode} {output}"):
            raise _without_room(fault)
    return process.returncode, output, usage.ru_utime + usage.ru_stime


def _read_resources(output: str) -> dict[str, Resources]:
    """The kernels' figures in what `ptxas -v` prints, in any order of its lines and of the figures in a line."""
    texts: dict[str, list[str]] = {}
    kernel: str | None = None
    for line in output.splitlines():
        if match := re.search(r"Compiling entry function '(.+)' for '", line):
            kernel = match[1]
            texts[kernel] = []
        elif match := re.search(r"Function properties for (\S+)", line):
            # Functions that a kernel calls are listed too, under their own names; their figures are not its own.
            kernel = match[1] if match[1] in texts else None
        elif kernel:
            texts[kernel].append(line)

    def figure(pattern: str, text: str) -> int:
        match = re.search(pattern, text)
        return int(match[1]) if match else 0

    return {
        name: Resources(
            registers=figure(r"Used (\d+) registers", text),
            spill_stores=figure(r"(\d+) bytes spill stores", text),
            spill_loads=figure(r"(\d+) bytes spill loads", text),
            stack=figure(r"(\d+) bytes stack frame", text),
            shared=figure(r"(\d+) bytes smem", text),
            constant_banks={int(b): int(n) for n, b in re.findall(r"(\d+) bytes cmem\[(\d+)\]", text)},
            barriers=figure(r"used (\d+) barriers", text),
        )
        for name, text in ((name, "\n".join(lines)) for name, lines in texts.items())
    }


def _messages(kind: str, output: str) -> list[tuple[str, str]]:
    """The messages of ``kind`` that ptxas printed: the line of the PTX (empty where none is meant), the text."""
    return re.findall(rf"^ptxas (?:line (\d+); )?(?:{kind}) *: *(.+)$", output, re.MULTILINE)


def _refusal(status: int, output: str, ptx: str, target: str, ptxas: Path) -> ToolchainError:
    """The error for a run of ptxas that made no machine code."""
    if match := re.search(r"Unsupported \.version (\S+); current version is '(.+)'", output):
        release = next((cuda for version, cuda in PTX_RELEASES.items() if str(version) == match[1]), "")
        return ToolchainError(
            f"{ptxas} reads PTX up to version {match[2]}, and the text is PTX {match[1]}",
            hint=f"CUDA {release}'s reads it: pip install -U {_PACKAGE}" if release else "",
        )
    errors = [(line, what) for line, what in _messages("error|fatal", output) if "aborted due to errors" not in what]
    if not errors:
        end = f"ended with status {status}" if status else "made no file"
        return ToolchainError(f"ptxas {end} for {target}: {output.strip()[-500:] or 'it said nothing'}")
    line = errors[0][0]
    about_it = [what.rstrip(".") for at, what in errors if at == line]
    lines = ptx.splitlines()
    quoted = f" at line {line}, `{lines[int(line) - 1].strip()}`" if line and int(line) <= len(lines) else ""
    more = f" (and {len(errors) - len(about_it)} more)" if len(errors) > len(about_it) else ""
    return ToolchainError(f"ptxas refuses the PTX for {target}{quoted}: {', '.join(about_it)}{more}")


def _unknown_target(target: str, candidates: Sequence[Path], asked: bool) -> ToolchainError:
    """The error for a target that no candidate knows. ``asked``: the caller named the only one."""
    releases = [_release(candidate) for candidate in candidates]
    first, *others = (f"ptxas {release} ({path})" for release, path in zip(releases, candidates, strict=True))
    text = ", ".join([f"{first} does not know {target}", *(f"nor does {other}" for other in others)])
    lacking = [] if asked else _lacking("ptxas")
    if lacking:
        text += f", and there is no other: {', '.join(lacking)}"
    return ToolchainError(text, hint=_who_knows(target, max(releases, key=_number)))


def _number(release: str) -> tuple[int, ...]:
    """A release as a number to compare."""
    return tuple(int(part) for part in release.split(".") if part)


def _release(ptxas: Path) -> str:
    """The CUDA release that ``ptxas`` is of, as in ``13.0``; empty where it does not say."""
    _, output, _ = run_timed([str(ptxas), "--version"], 10.0)
    match = re.search(r"release ([\d.]+)", output)
    return match[1] if match else ""


def _who_knows(target: str, release: str) -> str:
    """Which ptxas assembles for ``target`` when the one of CUDA ``release`` does not."""
    known = TARGETS.get(target)
    if known and release.startswith("13.") and known.sm < 75:
        return f"CUDA 12's does: pip install {_PACKAGE_12}"
    if known and release.startswith("13.") and known.sm == 101:
        return f"since CUDA 13 it is called sm_110{known.suffix}"
    since = f"CUDA {PTX_RELEASES[known.ptx]}'s does" if known else "a newer one may"
    return f"{since}: pip install -U {_PACKAGE}"
