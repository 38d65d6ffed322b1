"""A kernel of Emmy's to PTX, and PTX to a cubin in Emmy's cache.

The methods of :class:`Builder` take the places of Emmy's functions that :data:`ptxc.emmy.internals.REPLACED` lists;
each has the parameters of the function that it stands for.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ptxc.compilation import Options
from ptxc.driver import compile_op
from ptxc.errors import ToolchainError, UsageError, room_for
from ptxc.passes.pipeline import Runner
from ptxc.target import PtxVersion
from ptxc.toolchain import assemble, find_ptxas, tool_versions
from ptxc.version import __version__

if TYPE_CHECKING:
    from emmy.compiler.ir.cuda.ir import CudaOp
    from emmy.compiler.ir.kernel.ir import KernelOp
    from emmy.compiler.tensor import Tensor

#: What Emmy decides, not the caller of ``use_ptxc``.
_EMMYS = ("target", "math", "fma", "pins", "golden", "realization", "separate", "stop_after")

#: What does nothing here: nobody sees the times, and Emmy has a cache of its own.
_IDLE = ("time_passes", "cache")

_TARGET = re.compile(r"^\.target (sm_\d+)([af]?)", re.MULTILINE)

#: What the names of ptxc's cubins begin with. nvcc's are 40 hexadecimal digits alone.
PREFIX = "ptxc-"


def named_target(source: str) -> str:
    """The target that a PTX text names; empty for a text that is no PTX."""
    match = _TARGET.search(source)
    return f"{match[1]}{match[2]}" if match else ""


class Builder:
    """Builds Emmy's kernels with ``options`` of ptxc's. Raises UsageError for such as there are not, or are Emmy's."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        for name in options:
            if name in _EMMYS:
                raise UsageError(
                    f"{name} is not for ptxc to say", hint="use Emmy's --target, FAST_MATH, EMMY_NVCC_FLAGS"
                )
            if name in _IDLE:
                raise UsageError(f"{name} does nothing in use_ptxc", hint="leave it out")
            if name not in Options.__dataclass_fields__:
                raise UsageError(f"there is no option {name!r}")
        self._options = Options(**options)
        Runner(opt=self._options.opt, disabled=self._options.disable)
        if self._options.ptx_version:
            PtxVersion.parse(self._options.ptx_version)

    # ------------------------------------------------------------------------------------------------ to PTX

    def render(
        self,
        kernel_op: KernelOp,
        tensors: Mapping[str, Tensor] | None = None,
        shapes: object = None,
        literal_constants: object = None,
        runtime_args: Sequence[str] = (),
        indirect_inputs: Sequence[str] = (),
        paged_buffers: Sequence[tuple[str, int, int, str | None]] = (),
        starts: Sequence[str] = (),
    ) -> str:
        """A kernel's PTX, with Emmy's order of runtime integers. Raises CompileError."""
        if shapes or literal_constants:
            raise UsageError("Emmy asks for a kernel without the types of its buffers, or with constants in its text")
        hints = {
            "cuda.indirect_inputs": [*indirect_inputs],
            "cuda.paged_buffers": [[*entry] for entry in paged_buffers],
        }
        kernel = compile_op(kernel_op, kernel_op.name, hints, {}, self._options_now(), runtime=tuple(runtime_args))
        return kernel.ptx

    def _options_now(self) -> Options:
        """The options, for the target and the arithmetic that Emmy is set to. Raises UsageError without a target."""
        from emmy.compiler.backend.cuda.nvcc import effective_flags
        from emmy.compiler.target import compute_capability

        major, minor = compute_capability()
        if not major:
            raise UsageError("there is no GPU, and no target is given", hint="give Emmy's --target, such as sm_89")
        flags = Flags.read(effective_flags())
        math = "fast" if flags.fast else "precise"
        return replace(self._options, target=f"sm_{major}{minor}", math=math, fma=flags.fused)

    @staticmethod
    def needs_own_features(op: CudaOp) -> bool:
        """Whether a kernel must be assembled for ``sm_90a`` and its like: its text says so."""
        return named_target(op.kernel_source)[-1:] in ("a", "f")

    # ---------------------------------------------------------------------------------------------- to a cubin

    @staticmethod
    def tool() -> str | None:
        """The assembler, where Emmy asks for nvcc; None where there is none."""
        try:
            return str(find_ptxas())
        except ToolchainError:
            return None

    @staticmethod
    def toolkit() -> str:
        """What built a cubin, for Emmy's keys: this ptxc, and this ptxas."""
        try:
            found = hashlib.sha256(tool_versions("ptxas").encode()).hexdigest()[:12]
        except ToolchainError:
            found = "?"
        return f"{PREFIX}{__version__}-{found}"

    @staticmethod
    def key(source: str, name: str, arch: str) -> str:
        """The name of a cubin in Emmy's cache, a function of all that decides its bytes; never one of nvcc's."""
        from emmy.compiler.backend.cuda.nvcc import effective_flags

        parts = (source, name, arch, Builder.toolkit(), *effective_flags())
        return PREFIX + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]

    @staticmethod
    def compile_to_cubin(source: str, name: str, *, arch: str) -> Path:
        """The cubin of a PTX text in Emmy's cache, assembled unless it is there; it appears there whole or not at all.

        Raises what Emmy's function raises and its callers handle: RuntimeError where there is no ptxas, or the text
        is CUDA, and subprocess.CalledProcessError where ptxas refuses it.
        """
        from emmy.compiler.backend.cuda.nvcc import cubin_cache_dir, effective_flags

        if not named_target(source):
            raise RuntimeError(f"kernel {name!r} was lowered to CUDA, outside of use_ptxc: lower it again inside")
        if Builder.tool() is None:
            raise RuntimeError("ptxas is unavailable: pip install nvidia-cuda-nvcc, or set PTXC_PTXAS")
        folder = cubin_cache_dir()
        cubin = folder / f"{Builder.key(source, name, arch)}.cubin"
        if not cubin.exists():
            try:
                _publish(assemble(source, arch, options=Flags.read(effective_flags()).ptxas).cubin, cubin)
            except ToolchainError as error:
                _refuse(error, name)
        return cubin


def _refuse(error: ToolchainError, name: str) -> NoReturn:
    """Raise what Emmy takes for a compiler that refuses a kernel."""
    raise subprocess.CalledProcessError(1, ["ptxas", name], stderr=str(error).encode()) from error


#: nvcc's flags that say how it computes, of which ptxc's ``math`` is either all or none.
_ARITHMETIC = {"ftz": "true", "prec_div": "false", "prec_sqrt": "false"}
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True, slots=True)
class Flags:
    """What flags of nvcc's ask for, as far as that decides a kernel's results or is for the assembler."""

    fast: bool
    fused: bool
    ptxas: tuple[str, ...]

    @classmethod
    def read(cls, flags: Sequence[str]) -> Flags:
        """Flags of nvcc's: ``-name``, ``--name``, a value behind ``=`` or as the next one; the last of a name counts.

        Raises UsageError for flags that change results in a way that ptxc does not know, and those without a value.
        """
        switches: dict[str, bool] = {}
        ptxas: list[str] = []
        left = [*flags]
        while left:
            flag = left.pop(0)
            name, equals, value = flag.partition("=")
            name = name.lstrip("-").replace("-", "_")
            if name == "use_fast_math":
                switches[name] = not equals or _truth(flag, value)
            elif name in ("fmad", *_ARITHMETIC):
                switches[name] = _truth(flag, value if equals else left.pop(0) if left else "")
            elif name in ("Xptxas", "ptxas_options"):
                value = value if equals else left.pop(0) if left else ""
                if not value:
                    raise UsageError(f"there is nothing behind {flag} among EMMY_NVCC_FLAGS", hint="as in -Xptxas -O1")
                ptxas += filter(None, value.split(","))
        fast = switches.get("use_fast_math", False)
        for name, relaxed in _ARITHMETIC.items():
            if name in switches and switches[name] != ((relaxed == "true") is fast):
                raise UsageError(
                    f"--{name.replace('_', '-')}={str(switches[name]).lower()} among EMMY_NVCC_FLAGS is not followed",
                    hint="ptxc has all of --use_fast_math or none of it",
                )
        return cls(fast, switches.get("fmad", True), tuple(ptxas))


def _truth(flag: str, value: str) -> bool:
    """What the value of a switch says. Raises UsageError."""
    if value not in (*_TRUE, *_FALSE):
        raise UsageError(f"{flag} among EMMY_NVCC_FLAGS is neither true nor false", hint="as in --fmad=false")
    return value in _TRUE


def _publish(data: bytes, place: Path) -> None:
    """Write a file so that nobody sees a part of it. Raises UsageError where that cannot be done."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            whole = Path(folder, place.name)
            whole.write_bytes(data)
            os.replace(whole, place)
    except OSError as error:
        what = f"cannot write to Emmy's cache, {str(place.parent)!r}: {error.strerror or error}"
        raise UsageError(what, hint=room_for(error)) from error
