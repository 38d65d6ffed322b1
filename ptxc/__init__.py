"""ptxc compiles the scheduled Kernel IR of Emmy to NVIDIA PTX.

    import ptxc

    for kernel in ptxc.compile("kernel.ir.json", target="sm_90"):
        print(kernel.name, kernel.launch.grid, kernel.ptx)

Everything else is in the modules: :mod:`ptxc.driver` is the compilation, one step a line; :mod:`ptxc.errors` what it
raises; :mod:`ptxc.device` runs PTX without a GPU.
"""

from ptxc.device import device
from ptxc.driver import CompiledKernel, CompiledModule, Options, compile, compile_ir, compile_module
from ptxc.errors import CompileError
from ptxc.launch import Launch

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "CompiledKernel",
    "CompiledModule",
    "Launch",
    "Options",
    "compile",
    "compile_ir",
    "compile_module",
    "device",
]
