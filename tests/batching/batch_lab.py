"""Candidates that misbehave, and small kernels: what workers import."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

from ptxc.batching.candidates import Task
from ptxc.batching.job import Built, build


def misbehave(task: Task) -> list[Built]:
    """Compile, unless the candidate's name says otherwise."""
    what = task.name.partition(":")[0]
    if what == "loop":
        while True:
            pass
    if what == "stuck":  # as in C code: nothing in Python ends it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
        while True:
            pass
    if what == "hog":
        hoard = []
        while True:
            hoard.append(bytearray(1 << 24))
    if what == "segfault":
        ctypes.string_at(0)
    if what == "exit":
        os._exit(3)
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "fault":
        raise RuntimeError("a fault on purpose")
    return build(task)


def logged(log: str, task: Task) -> list[Built]:
    """The same, with the candidate's digest in a file."""
    with open(log, "a") as file:
        file.write(f"{task.digest}\n")
    return misbehave(task)


def vector_add(count: int) -> dict[str, Any]:
    """The graph of z = x + y over ``count`` elements."""
    dtype = "DataType(name='f32', np=dtype('float32'), nbytes=4)"
    load = "Load(names=('{0}0',), input='{0}', index=(Var('a0'),), dtype=" + dtype + ", carried='')"
    body = (
        load.format("x"),
        load.format("y"),
        f"Assign(name='v', op=ElementwiseImpl('add'), args=('x0', 'y0'), dtype={dtype})",
        f"Write(output='z', index=(Var('a0'),), values=('v',), value_dtype={dtype}, atomic=False, swizzle='NONE')",
    )
    tile = (
        f"Tile(axes=(Axis(name='a0', extent=Dim({count}), window=None),), body=({', '.join(body)},), block_threads=64,"
        " aux_threads=0, raster_axes=None, raster_group=None, raster_orient='m')"
    )
    buffer = {"shape": [count], "dtype": "f32"}
    fields = {"body": [tile], "name": "k_add", "zero_delegated": [], "serial": []}
    inputs = {
        name: {"op": "InputOp", "op_fields": {}, "inputs": [], "outputs": [{"name": name, **buffer}]} for name in "xy"
    }
    output = {"op": "KernelOp", "op_fields": fields, "inputs": ["x", "y"], "outputs": [{"name": "z", **buffer}]}
    return {"inputs": ["x", "y"], "outputs": ["z"], "nodes": {**inputs, "z": output}}
