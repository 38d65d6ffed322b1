"""The statements of tensor cores: fragments, what fills them, what multiplies them and what stores them.

A fragment is a warp's tile, of which each lane holds a few registers. The register ``i`` of the fragment ``c`` has the
name ``c[i]`` where the lowering is, so that loops carry it as they carry any name.

====================  ==========================================================================
:mod:`.registers`     which registers a fragment has; reading and assigning them
:mod:`.lanes`         which rows and columns of a tile a lane holds
:mod:`.shared`        loads from shared memory, by ``ldmatrix``
:mod:`.direct`        loads element by element: from global memory, of another type than the fragment
:mod:`.volta`         loads and exchanges of m8n8k4, which has no ``ldmatrix``
:mod:`.raw`           loads of bytes as they are, for fragments of fp8 and fp4
:mod:`.scaled`        the scales of blocks of k, as operands or multiplied into a fragment
:mod:`.pairs`         pairs of 16-bit elements
:mod:`.multiply`      ``mma.sync``, and what prepares or folds its operands in registers
:mod:`.warpgroup`     ``wgmma``, which four warps issue and which goes on by itself
:mod:`.flights`       which registers it holds meanwhile
:mod:`.apply`         operations on each element of an accumulator, and reductions of its rows
:mod:`.store`         stores of accumulators, with what is computed on the way
====================  ==========================================================================

Source: the classes of ``emmy.compiler.ir.kernel.ir`` from ``FragmentApply`` to ``RegStore``, and the CUDA preludes of
``emmy.compiler.ir.kernel.render``; PTX ISA, "Warp-level matrix instructions" and
"Asynchronous warpgroup level matrix instructions".
"""
