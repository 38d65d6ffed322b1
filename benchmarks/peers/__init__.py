"""Other compilers that make PTX for the benchmark problems, where they are installed: ``pip install 'ptxc[peers]'``.

Each module has a function ``peer(target)``, which imports the compiler and gives its `Peer`: for some of the problems,
an equivalent of the same sizes in f32, in the form from which that compiler goes to PTX. None needs a GPU.

    triton    with `triton_kernels`: functions of Triton's language
    tinygrad  kernels as tinygrad's scheduler leaves them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

from compilation.timing import best_ms

#: The modules.
PEERS = ("triton", "tinygrad")
#: Compilations of each problem that are timed, after one that is not.
_ROUNDS = 5


class Peer(NamedTuple):
    """A compiler: its name with its version, and by problem what compiles the kernels that it takes, to a PTX each."""

    name: str
    compile: Mapping[str, Callable[[], list[str]]]


class PeerCost(NamedTuple):
    """What a compiler takes for a problem: how many kernels that takes, their PTX lines, CPU milliseconds in all."""

    problem: str
    compiler: str
    kernels: int
    lines: int
    ms: float


def find(target: str, modules: Sequence[str] = PEERS) -> tuple[list[Peer], list[str]]:
    """The compilers that are installed, and why each of the others is left out."""
    found, missing = [], []
    for module in modules:
        try:
            found.append(import_module(f"peers.{module}").peer(target))
        except ImportError as error:
            missing.append(f"{module} is left out: {error}; pip install 'ptxc[peers]' gets it")
    return found, missing


def costs(peer: Peer, problems: Iterable[str]) -> list[PeerCost]:
    """What ``peer`` takes for those of the problems that it has."""
    return [_cost(peer.name, problem, peer.compile[problem]) for problem in problems if problem in peer.compile]


def _cost(name: str, problem: str, compile: Callable[[], list[str]]) -> PeerCost:
    texts = compile()  # what is done once a process is not counted
    lines = sum(len(text.splitlines()) for text in texts)
    return PeerCost(problem, name, len(texts), lines, best_ms(compile, _ROUNDS))
