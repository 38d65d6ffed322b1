"""Triton: from a function of its language, in memory, to PTX, by its own compiler (its IR, LLVM)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from peers import Peer


class _Kernel(NamedTuple):
    """The name of a function in `triton_kernels`, its pointers, its constants, warps and stages of a program.

    Blocks and threads are those of the benchmark's kernel; a step of the product is half as deep. Attention is one
    kernel, in small blocks, since Triton unrolls their products.
    """

    function: str
    pointers: str
    constants: Mapping[str, float]
    warps: int
    stages: int = 1


_SQUARE = {"M": 512, "N": 512, "K": 512, "BM": 64, "BN": 64, "BK": 32, "GROUP": 8}
_HEADS = {"SCALE": 0.125, "LENGTH": 64, "WIDTH": 64, "BM": 32, "BN": 32}

_KERNELS: Mapping[str, _Kernel] = {
    "p01_vector_add": _Kernel("vector_add", "xyz", {"BLOCK": 1024}, 8),
    "r04_row_sum": _Kernel("row_sum", "xy", {"K": 2048}, 2),
    "f01_rmsnorm": _Kernel("rmsnorm", "xwy", {"EPS": 1e-6, "K": 2048}, 8),
    "f02_row_softmax": _Kernel("softmax", "xy", {"K": 2048}, 4),
    "m01_matmul_512": _Kernel("matmul", "abc", _SQUARE, 4, 2),
    "a01_attention": _Kernel("attention", "qkvo", _HEADS, 4, 2),
}


def peer(target: str) -> Peer:
    """Triton, for ``target``. Raises ImportError where it is not installed."""
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as it is by default, which it warns of
    import triton

    compile = partial(_compile, int(target.removeprefix("sm_").rstrip("af")))
    work: dict[str, Callable[[], list[str]]] = {name: partial(compile, kernel) for name, kernel in _KERNELS.items()}
    return Peer(f"Triton {triton.__version__}", work)


def _compile(capability: int, kernel: _Kernel) -> list[str]:
    """The PTX of a kernel, made anew: each time with a cache that is empty, without ptxas and without line numbers."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from peers import triton_kernels

    types = dict.fromkeys(kernel.pointers, "*fp32") | dict.fromkeys(kernel.constants, "constexpr")
    aligned = {(at,): [["tt.divisibility", 16]] for at in range(len(kernel.pointers))}
    source = ASTSource(getattr(triton_kernels, kernel.function), types, dict(kernel.constants), aligned)
    options = {"num_warps": kernel.warps, "num_stages": kernel.stages}
    with tempfile.TemporaryDirectory(prefix="ptxc-") as folder:
        knobs.cache.dir = folder
        knobs.compilation.always_compile = True
        knobs.compilation.disable_line_info = True
        knobs.runtime.add_stages_inspection_hook = _to_ptx_only
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        return [str(made.asm["ptx"])]


def _to_ptx_only(_: Any = None, stages: Any = None, *__: Any) -> tuple[str, str]:
    """Triton's hook, which leaves out the stage that runs ptxas; without arguments, what it adds to a cache key."""
    if stages is not None:
        stages["cubin"] = lambda ptx, metadata: b""
    return "to PTX only", "to PTX only"
