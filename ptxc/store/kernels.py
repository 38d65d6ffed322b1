"""Compiled kernels in the store.

A kernel's entry is found by its content (:mod:`ptxc.store.content`), the options that decide the text, and the version
of the code. A file's entry says which kernels are in the file of these bytes, so that it need not be read: parsing it
takes longer than all else, importing Emmy for that much longer.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, BinaryIO

from ptxc import driver
from ptxc.errors import CompileError
from ptxc.launch import Launch
from ptxc.store.folder import Store, Value, digest
from ptxc.store.settings import code_version, open_store
from ptxc.target import PtxVersion

if TYPE_CHECKING:
    from emmy.compiler.graph import Graph

    from ptxc.driver import CompiledKernel, Observer, Options
    from ptxc.frontend.reader import KernelNode

_KERNEL, _FILE = "kernel", "file"


def compile_kept(
    node: KernelNode, graph: Graph, options: Options, make: Callable[[], CompiledKernel]
) -> CompiledKernel:
    """The kernel from the store; else what ``make`` gives, which is kept from now on."""
    from ptxc.store.content import content_key

    store = open_store(options.cache)
    content = content_key(node, graph) if store.limit else None
    if content is None:
        return make()
    again = partial(driver.compile_kernel, node, graph, replace(options, cache=False))
    found = _found(store, content, options, again)
    if found is None:
        found = make()
        store.put(_KERNEL, _key(content, options), _packed(found))
    return found


def key_of(node: KernelNode, graph: Graph, options: Options) -> str | None:
    """The digest of a kernel and of all options that decide its text; None for a kernel that has none."""
    from ptxc.store.content import content_key

    content = content_key(node, graph)
    return None if content is None else _key(content, options)


class KernelFile:
    """The kernels of a file of Kernel IR, which is read when one of them is compiled."""

    def __init__(self, source: str | os.PathLike[str] | BinaryIO, cache: bool) -> None:
        """Raises InputError where ``source``, a path or an open file, cannot be read."""
        from ptxc.frontend.jsonfile import file_name, read_bytes

        self._name = file_name(source)
        try:
            self._bytes = read_bytes(source)
        except CompileError as error:
            error.at(file=self._name)
            raise
        self._store = open_store(cache)

    @cached_property
    def kernels(self) -> list[tuple[str, str | None]]:
        """Each kernel's name, and the digest of its content where it has one. Raises CompileError."""
        if not self._store.limit:
            return [(node.name, None) for node in self._nodes]
        name = os.path.basename(self._name)
        found = self._store.find(_FILE, digest(_FILE, code_version(), self._bytes), self._read, name=name)
        return [(name, content) for name, content in found]

    def key(self, index: int, options: Options) -> str | None:
        """The key of the kernel of this number. Raises CompileError."""
        content = self.kernels[index][1]
        if content is None and not self._store.limit:
            return key_of(self._nodes[index], self._graph, options)
        return None if content is None else _key(content, options)

    def compile(self, index: int, options: Options, observe: Observer | None = None) -> CompiledKernel:
        """Compile the kernel of this number. Raises CompileError."""
        content = self.kernels[index][1]
        if content is not None and options.is_kept(observe):
            again = partial(self.compile, index, replace(options, cache=False))
            found = _found(self._store, content, options, again)
            if found is not None:
                return found
        return driver.compile_kernel(self._nodes[index], self._graph, options, observe)

    def _read(self) -> list[tuple[str, str | None]]:
        from ptxc.store.content import content_key

        return [(node.name, content_key(node, self._graph)) for node in self._nodes]

    @cached_property
    def _graph(self) -> Graph:
        try:
            return driver.graph_of(io.BytesIO(self._bytes))
        except CompileError as error:
            error.at(file=self._name)
            raise

    @cached_property
    def _nodes(self) -> list[KernelNode]:
        from ptxc.frontend.reader import kernel_nodes

        return kernel_nodes(self._graph)


def _key(content: str, options: Options) -> str:
    """The key of a kernel of this content."""
    chosen = (options.target, options.ptx_version, options.math, str(bool(options.fma)), str(int(options.opt)))
    return digest(_KERNEL, code_version(), content, *chosen, *sorted(set(options.disable)))


def _found(store: Store, content: str, options: Options, again: Callable[[], CompiledKernel]) -> CompiledKernel | None:
    """The kernel of this content from the store; ``again`` compiles it, for who wants its IR."""
    value = store.get(_KERNEL, _key(content, options))
    if value is None:
        return None
    facts = value.facts
    registers = {bank: (count, live) for bank, (count, live) in facts["registers"].items()}
    ptx = value.data.decode()
    return driver.CompiledKernel(
        name=facts["name"],
        ptx=ptx,
        launch=Launch.from_dict(facts["launch"]),
        stats=driver.Stats((), ptx.count("\n"), registers),
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
