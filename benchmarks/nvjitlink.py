"""Assembling by the library nvJitLink, in process, beside ptxas as a process: CPU time, and the registers of both.

    pip install nvidia-nvjitlink 'nvidia-cuda-nvcc>=13,<14'    # of one version
    python benchmarks/nvjitlink.py [COUNT]

It takes COUNT kernels (50) of the corpus at random, each for its own GPU. Why ptxc forks ptxas: docs/batch.md.
"""

from __future__ import annotations

import ctypes
import importlib.util
import random
import re
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shared import SHARED

from ptxc.corpus import entries
from ptxc.driver import compile
from ptxc.toolchain import assemble, find_tools

#: The kind of input that is PTX, in nvJitLink.h.
_PTX = 2
#: CUDA 13 does not know it.
_TOO_OLD = "sm_70"


def library() -> Any:
    """The library, from NVIDIA's wheel."""
    spec = importlib.util.find_spec("nvidia")
    for parent in (spec.submodule_search_locations if spec else None) or ():
        for path in Path(parent).glob("cu*/lib/libnvJitLink.so.*"):
            return ctypes.CDLL(str(path))
    raise SystemExit("the package nvidia-nvjitlink is not installed")


def link(lib: Any, ptx: str, target: str) -> str:
    """What nvJitLink says of the kernel that it made."""
    options = (ctypes.c_char_p * 2)(f"-arch={target}".encode(), b"-verbose")
    handle, size, text = ctypes.c_void_p(), ctypes.c_size_t(), ptx.encode() + b"\0"
    checked(lib.nvJitLinkCreate(ctypes.byref(handle), len(options), options))
    checked(lib.nvJitLinkAddData(handle, _PTX, text, ctypes.c_size_t(len(text)), b"kernel.ptx"))
    checked(lib.nvJitLinkComplete(handle))
    checked(lib.nvJitLinkGetLinkedCubinSize(handle, ctypes.byref(size)))
    checked(lib.nvJitLinkGetLinkedCubin(handle, ctypes.create_string_buffer(size.value)))
    checked(lib.nvJitLinkGetInfoLogSize(handle, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value + 1)
    checked(lib.nvJitLinkGetInfoLog(handle, log))
    checked(lib.nvJitLinkDestroy(ctypes.byref(handle)))
    return log.value.decode()


def checked(status: int) -> None:
    if status:
        raise SystemExit(f"nvJitLink failed with status {status}")


def registers(log: str) -> int:
    match = re.search(r"Used (\d+) registers", log)
    return int(match[1]) if match else 0


def timed(work: Callable[[str, str], int], kernels: Sequence[tuple[str, str]]) -> tuple[list[int], str]:
    """The registers of each kernel, and milliseconds a kernel: CPU, children included, and wall-clock."""
    before, started = cpu(), time.monotonic()
    found = [work(ptx, target) for ptx, target in kernels]
    took = [1000 * seconds / len(kernels) for seconds in (cpu() - before, time.monotonic() - started)]
    return found, f"{took[0]:.1f} ms of CPU, {took[1]:.1f} ms of wall-clock time a kernel"


def cpu() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    lib = library()
    (ptxas, *_) = (path for path in find_tools("ptxas") if "cu13" in path.parts)
    found = [entry for entry in entries(SHARED / "emmy-corpus") if entry.target != _TOO_OLD]
    kernels = []
    for entry in random.Random(2).sample(found, count):
        (kernel,) = compile(entry.path, target=entry.target)
        kernels.append((kernel.ptx, kernel.target))
    for _ in range(2):  # the first warms
        theirs, said = timed(lambda ptx, target: registers(link(lib, ptx, target)), kernels)
        print(f"nvJitLink: {said}")
        ours, said = timed(lambda ptx, target: _assembled(ptx, target, ptxas), kernels)
        print(f"ptxas:     {said}")
    other = [(mine, its) for mine, its in zip(ours, theirs, strict=True) if mine != its]
    print(f"{len(other)} of {count} kernels have another number of registers (ptxas, nvJitLink): {other}")
    return 0


def _assembled(ptx: str, target: str, ptxas: Path) -> int:
    return next(iter(assemble(ptx, target, ptxas=ptxas).kernels.values())).registers


if __name__ == "__main__":
    sys.exit(main())
