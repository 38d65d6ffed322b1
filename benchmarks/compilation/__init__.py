"""The parts of ``benchmarks/compile_time.py``, which compares what compilers take for the benchmark kernels.

    kernels  which kernels                costs   one kernel by ptxc and nvcc, to PTX and to machine code
    timing   how CPU time is taken        growth  a kernel at growing size
    bars     what is to be reached        tables  all of it, printed

What other compilers take for the same problems is in ``benchmarks/peers``.
"""
