"""ptxc compiles the scheduled Kernel IR of Emmy to NVIDIA PTX.

    import ptxc

    for kernel in ptxc.compile("kernel.ir.json", target="sm_90"):
        print(kernel.name, kernel.launch.grid, kernel.ptx)

Everything else is in the modules: :mod:`ptxc.driver` is the compilation, one step a line; :mod:`ptxc.errors` what it
raises; :mod:`ptxc.device` runs PTX without a GPU.
"""

import importlib
from typing import TYPE_CHECKING

# Not late like the rest: a later import of the package of that name would take the function's place.
from ptxc.device import device
from ptxc.version import __version__ as __version__
from ptxc.version import is_compiled

if TYPE_CHECKING:
    from ptxc.batching import Candidate, batch
    from ptxc.compilation import CompiledKernel, Options
    from ptxc.driver import CompiledModule, compile, compile_ir, compile_kernel, compile_module
    from ptxc.errors import CompileError, InputError, UsageError
    from ptxc.launch import Launch

__all__ = [
    "Candidate",
    "CompileError",
    "CompiledKernel",
    "CompiledModule",
    "InputError",
    "Launch",
    "Options",
    "UsageError",
    "batch",
    "compile",
    "compile_ir",
    "compile_kernel",
    "compile_module",
    "device",
    "is_compiled",
]

_HOMES = {
    "Candidate": "batching",
    "CompileError": "errors",
    "CompiledKernel": "compilation",
    "InputError": "errors",
    "Launch": "launch",
    "Options": "compilation",
    "UsageError": "errors",
    "batch": "batching",
}


def __getattr__(name: str) -> object:
    """Import what is asked for only now: the command line's help needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"ptxc.{_HOMES.get(name, 'driver')}"), name)
    globals()[name] = found
    return found
