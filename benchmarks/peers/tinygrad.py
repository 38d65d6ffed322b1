"""tinygrad: from a kernel as its scheduler leaves it to PTX: its heuristics' choice of a schedule, rewriting, PTX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from peers import Peer

#: An expression of tensors, made by a function that gives a tensor of a shape.
_Expression = Callable[[Callable[..., Any]], Any]


def _rmsnorm(tensor: Callable[..., Any]) -> Any:
    x, w = tensor(512, 2048), tensor(2048)
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w


def _attention(tensor: Callable[..., Any]) -> Any:
    q, k, v = (tensor(8, 64, 64) for _ in range(3))
    return q.scaled_dot_product_attention(k, v)


_PROBLEMS: Mapping[str, _Expression] = {
    "p01_vector_add": lambda tensor: tensor(1 << 20) + tensor(1 << 20),
    "r04_row_sum": lambda tensor: tensor(512, 2048).sum(-1),
    "f01_rmsnorm": _rmsnorm,
    "f02_row_softmax": lambda tensor: tensor(512, 2048).softmax(-1),
    "m01_matmul_512": lambda tensor: tensor(512, 512) @ tensor(512, 512),
    "a01_attention": _attention,
}


def peer(target: str) -> Peer:
    """tinygrad, for ``target``. Raises ImportError where it is not installed, or is too old or too new for this."""
    from importlib.metadata import version

    from tinygrad.helpers import Target
    from tinygrad.renderer.ptx import PTXRenderer

    renderer = PTXRenderer(Target("CUDA", "PTX", target))
    work: dict[str, Callable[[], list[str]]] = {
        problem: partial(_compile, _scheduled(expression), renderer) for problem, expression in _PROBLEMS.items()
    }
    return Peer(f"tinygrad {version('tinygrad')}", work)


def _scheduled(expression: _Expression) -> list[Any]:
    """The kernels of an expression, in order, for a GPU that need not be there."""
    from tinygrad import Tensor, dtypes
    from tinygrad.helpers import Context, Target
    from tinygrad.uop.ops import Ops

    with Context(DEV=Target("CUDA")):
        result = expression(lambda *shape: Tensor.empty(*shape, dtype=dtypes.float32, device="CUDA"))
        return [call.src[0] for call in result.schedule_linear().src if call.src[0].op is Ops.SINK]


def _compile(kernels: Sequence[Any], renderer: Any) -> list[str]:
    """The PTX of each kernel, made anew: tinygrad's caches, of programs and on disk, are not asked."""
    from tinygrad.codegen import do_to_program
    from tinygrad.helpers import Context, disable_gc

    with Context(CACHELEVEL=0), disable_gc():  # as its own way to a kernel does, which saves it some time
        return [do_to_program(kernel, renderer).src[-1].arg.decode() for kernel in kernels]
