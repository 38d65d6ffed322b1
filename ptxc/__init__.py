"""ptxc compiles the scheduled Kernel IR of Emmy to NVIDIA PTX.

    import ptxc

    for kernel in ptxc.compile("kernel.ir.json", target="sm_90"):
        print(kernel.name, kernel.launch.grid, kernel.ptx)

Everything else is in the modules: :mod:`ptxc.driver` is the compilation, one step a line; :mod:`ptxc.errors` what it
raises; :mod:`ptxc.device` runs PTX without a GPU.
"""

import importlib
import time
from typing import TYPE_CHECKING

# Not late like the rest: a later import of the package of that name would take the function's place.
from ptxc.device import device

if TYPE_CHECKING:
    from ptxc.batching import Candidate, batch
    from ptxc.driver import CompiledKernel, CompiledModule, Options, compile, compile_ir, compile_kernel, compile_module
    from ptxc.errors import CompileError, InputError, UsageError
    from ptxc.launch import Launch

#: When this process began to load ptxc, in seconds since 1970: sources that changed later are not what it runs.
LOADED = time.time()

__version__ = "0.1.0"

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
    "InputError": "errors",
    "Launch": "launch",
    "UsageError": "errors",
    "batch": "batching",
}


def is_compiled() -> bool:
    """Whether this is the compiled build, whose inner modules are C extensions (setup.py)."""
    from ptxc import target

    return not target.__file__.endswith(".py")


def __getattr__(name: str) -> object:
    """Import what is asked for only now: the command line's help needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"ptxc.{_HOMES.get(name, 'driver')}"), name)
    globals()[name] = found
    return found
