"""A kernel's two builds side by side."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ptxc.comparison.builds import Build, build_with_nvcc, build_with_ptxc, emmys_texts
from ptxc.comparison.work import Region, Unit, alike, common_unit, hottest_of
from ptxc.compilation import Options
from ptxc.driver import graph_of
from ptxc.errors import CompileError, InputError
from ptxc.frontend.reader import kernel_nodes
from ptxc.reference.emmy import NVCC_TARGETS, CudaText
from ptxc.store import Store


@dataclass(frozen=True)
class Comparison:
    """One kernel by ptxc and by nvcc; a build that could not be made is None, and a note says why."""

    file: str
    kernel: str
    #: The target asked for; a build's own may be another one.
    target: str
    ptxc: Build | None
    nvcc: Build | None
    notes: tuple[str, ...] = ()

    @property
    def both(self) -> tuple[Build, Build] | None:
        """ptxc's build and nvcc's, where there are both."""
        return (self.ptxc, self.nvcc) if self.ptxc and self.nvcc else None

    @cached_property
    def unit(self) -> Unit:
        """What the work of both builds is counted in."""
        return common_unit([build.code for build in (self.ptxc, self.nvcc) if build])

    @cached_property
    def hottest(self) -> tuple[Region | None, Region | None]:
        """The hottest region of each build; of two builds, those that compare (:func:`hottest_of`)."""
        if self.both:
            ours, theirs = self.both
            return hottest_of(ours.code, theirs.code, self.unit)
        one, other = (build.code.hottest(self.unit) if build else None for build in (self.ptxc, self.nvcc))
        return one, other

    @property
    def per_work(self) -> float | None:
        """How many times the SASS of nvcc's build ptxc's has for a unit of work in the hottest region."""
        ours, theirs = self.hottest
        return ours.per_work(self.unit) / theirs.per_work(self.unit) if ours and theirs else None

    @property
    def alike(self) -> bool:
        """Whether the hottest regions are of one sort (:func:`ptxc.comparison.work.alike`)."""
        ours, theirs = self.hottest
        return ours is not None and theirs is not None and alike(ours, theirs, self.unit)

    def to_dict(self) -> dict[str, Any]:
        """All figures, as JSON takes them; docs/compare.md explains each key."""
        return {
            "file": self.file,
            "kernel": self.kernel,
            "target": self.target,
            "notes": list(self.notes),
            "unit": self.unit if self.ptxc or self.nvcc else None,
            "per_work_ratio": self.per_work,
            "alike": self.alike,
            **{
                who: build.to_dict(self.unit, hottest) if build and hottest else None
                for who, build, hottest in zip(("ptxc", "nvcc"), (self.ptxc, self.nvcc), self.hottest, strict=True)
            },
        }


def compare_file(path: Path, options: Options, kept: Store) -> list[Comparison]:
    """The kernels of a file, each by both compilers.

    CUDA 13 compiles for no GPU before sm_75: what is meant for one is compared as both build it for sm_75. Raises
    InputError for a file that is no graph of Kernel IR; what a compiler cannot build is a note of its row.
    """
    data = _read(path)
    target = NVCC_TARGETS.get(options.target, options.target)
    notes = [] if target == options.target else [f"built for {target}: CUDA 13 does not know {options.target}"]
    options, asked = replace(options, target=target), options.target
    try:
        graph = graph_of(io.BytesIO(data))
        nodes = list(kernel_nodes(graph))
        if not nodes:
            raise InputError(
                "the graph is not Kernel IR yet", hint="compare what Emmy's lowering/kernel passes make of it"
            )
    except CompileError as error:
        error.at(file=str(path))
        raise
    texts, reason = _texts(data, options, kept)
    found = []
    for node in nodes:
        name = node.name
        text = _named(name, texts)
        ours, our_note = _attempt("ptxc", partial(build_with_ptxc, node, graph, options, kept))
        if text is not None:
            theirs, their_note = _attempt("nvcc", partial(build_with_nvcc, text, options, kept))
        else:
            theirs, their_note = None, f"nvcc: {reason or 'Emmy has no kernel of this name'}"
        said = [*notes, *filter(None, (our_note, their_note))]
        found.append(Comparison(str(path), name, asked, ours, theirs, tuple(said)))
    return found


def _texts(data: bytes, options: Options, kept: Store) -> tuple[list[CudaText], str]:
    """Emmy's CUDA texts, or why there are none."""
    try:
        return emmys_texts(data, options, kept), ""
    except CompileError as error:
        return [], str(error)


def _named(name: str, texts: Sequence[CudaText]) -> CudaText | None:
    """The text of a kernel. Emmy adds to the name of one that zeroes what a later one adds to."""
    exact = [text for text in texts if text.entry == name]
    longer = [text for text in texts if text.entry.startswith(f"{name}__")]
    return next(iter(exact + longer), None)


def _attempt(who: str, build: Callable[[], Build]) -> tuple[Build | None, str]:
    """A build, or why there is none."""
    try:
        return build(), ""
    except CompileError as error:
        return None, f"{who}: {error}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the file: {error.strerror}", file=str(path)) from error
