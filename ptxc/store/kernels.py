"""Compiled kernels in the store.

A kernel's entry is found by its content (:mod:`ptxc.store.content`), the options that decide the text, and the version
of the code. A file's entry says which kernels are in the file of these bytes, so that it need not be read: parsing it
takes longer than all else, importing Emmy for that much longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

from ptxc.compilation import Again, CompiledKernel, Options, Stats
from ptxc.launch import Launch
from ptxc.store.folder import Store, Value, digest
from ptxc.store.settings import code_version, open_store
from ptxc.target import PtxVersion

if TYPE_CHECKING:
    from emmy.compiler.graph import Graph

    from ptxc.frontend.reader import KernelNode

_KERNEL, _FILE = "kernel", "file"


def kept(content: str | None, options: Options, make: Callable[..., CompiledKernel]) -> CompiledKernel:
    """The kernel of this content from the store; else what ``make`` gives for the options, kept from now on.

    ``make`` keeps the IR where it is called ``with_ir=True``.

    None is the content of a kernel that is made each time.
    """
    store = open_store(options.cache)
    if content is None or not store.limit:
        return make(options)
    found = _found(store, content, options, Again(partial(make, replace(options, cache=False), with_ir=True)))
    if found is None:
        found = make(options)
        store.put(_KERNEL, key_of(content, options), _packed(found))
    return found


def content_of(node: KernelNode, graph: Graph) -> str | None:
    """The digest of a kernel for :func:`kept`; None where nothing is kept, too."""
    from ptxc.store.content import content_key

    return content_key(node, graph) if open_store().limit else None


def contents(data: bytes, read: Callable[[], Graph], name: str) -> list[tuple[str, str | None]]:
    """The kernels of a file of these bytes: each one's name, and the digest of its content where it has one.

    ``read`` gives its graph and is called where the store does not know the file, which people call ``name``.
    """

    def listed() -> list[tuple[str, str | None]]:
        from ptxc.frontend.reader import kernel_nodes

        graph = read()
        return [(node.name, content_of(node, graph)) for node in kernel_nodes(graph)]

    store = open_store()
    if not store.limit:
        return listed()
    found = store.find(_FILE, digest(_FILE, code_version(), data), listed, name=name)
    return [(name, content) for name, content in found]


def key_of(content: str, options: Options) -> str:
    """The digest of a kernel of this content and of all options that decide its text."""
    chosen = (options.target, options.ptx_version, options.math, str(bool(options.fma)), str(int(options.opt)))
    return digest(_KERNEL, code_version(), content, *chosen, *sorted(set(options.disable)))


def _found(store: Store, content: str, options: Options, again: Again) -> CompiledKernel | None:
    """The kernel of this content from the store; ``again`` compiles it, for who wants its IR."""
    value = store.get(_KERNEL, key_of(content, options))
    if value is None:
        return None
    facts = value.facts
    ptx = value.data.decode()
    return CompiledKernel(
        name=facts["name"],
        ptx=ptx,
        launch=Launch.from_dict(facts["launch"]),
        stats=Stats((), ptx.count("\n"), facts["registers"]),
        ir=again,
        version=PtxVersion(*facts["version"]),
        target=facts["target"],
    )


def _packed(kernel: CompiledKernel) -> Value:
    assert kernel.launch is not None  # only IR comes without
    facts = {
        "name": kernel.name,
        "target": kernel.target,
        "version": kernel.version,
        "launch": asdict(kernel.launch),
        "registers": kernel.stats.registers,
    }
    return Value(facts, kernel.ptx.encode())
