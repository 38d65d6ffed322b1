"""What a kernel should compute, what it does compute, and the difference; all without a GPU.

buffers      the arrays of a run: sizes, random inputs, outputs that tell what was never written
steps        kernels in the order of their launches, from a compilation or from a launch description
sample       which CTAs, where all would take too long
placement    where buffers lie in a launch: as they are, in pages, behind tables of addresses
execution    steps on the CPU device
evaluator    Kernel IR, evaluated directly: the reference that shares nothing with the compiler
             (``values``: element types and operations, ``codes``: those of eight and four bits, ``expressions``,
             ``memory``, ``layouts`` of shared arrays, ``statements`` and the modules that it lists: ``collective``,
             ``fragments`` with ``lane_maps`` and ``fragment_memory``, ``warpgroup``, ``tma``, ``barriers``;
             ``progress``: threads that wait for one another)
emmy         Emmy's own: its CUDA text by way of nvcc, its NumPy evaluation of a program
compare      differences of outputs
tolerances   what is near enough, by types and by what is summed in f16
verification answers of the evaluator, ptxc's PTX and nvcc's, compared

:mod:`ptxc.cli.run` and :mod:`ptxc.cli.verify` print what these find.
"""
