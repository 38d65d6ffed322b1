"""A kernel between the passes: in a folder, on standard error, and what a pass changed."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ptxc.cli.files import keep_inputs, make_folder, write
from ptxc.cli.jsontext import compact
from ptxc.cli.messages import present
from ptxc.compilation import CompiledKernel
from ptxc.ir.kernel import Kernel

if TYPE_CHECKING:
    from emmy.compiler.graph import Graph

ALL = "all"


class Dumps:
    """Observes one kernel's compilation (:data:`ptxc.compilation.Observer`)."""

    def __init__(
        self,
        label: str,
        *,
        folder: Path | None = None,
        after: Collection[str] = (),
        changed: bool = False,
        start_at: str = "",
        inputs: Sequence[str] = (),
    ) -> None:
        """``label`` names the kernel in what is shown, ``after`` the passes to show it after (or ``all``).

        What an earlier compilation left in ``folder`` is removed from pass ``start_at`` on, as some of it may not be
        written again. Raises UsageError where that is one of ``inputs``.
        """
        self.label, self.folder, self.after, self.changed = label, folder, after, changed
        self._before: tuple[str, str] | None = None
        if folder is not None:
            make_folder(folder)
            dumps = [folder / name for name in _names(start_at)]
            for dump in dumps:
                keep_inputs(dump, inputs, f"the dump {dump.name}", "give --dump-dir another folder")
            for dump in dumps:
                if dump.is_file():
                    dump.unlink()

    def __call__(self, rank: int, name: str, kernel: Kernel) -> None:
        """Show the kernel as pass ``name`` left it."""
        from ptxc.ir.text import format_kernel

        step, text = f"{rank}-{name}", format_kernel(kernel)
        if self.folder is not None:
            write(self.folder / f"{step}.ir", text)
        if name in self.after or ALL in self.after:
            present(f"// {self.label} after {step}\n{text}")
        if self.changed and self._before is not None:
            present(_difference(self.label, *self._before, step, text))
        self._before = (step, text)

    def finish(self, kernel: CompiledKernel) -> None:
        """Write what the folder holds besides the IR."""
        if self.folder is None:
            return
        if kernel.ptx:
            write(self.folder / "out.ptx", kernel.ptx)
        if kernel.launch is not None:
            write(self.folder / "launch.json", launch_json([kernel]))


def _names(start_at: str) -> list[str]:
    """The files that a compilation from pass ``start_at`` on writes to a dump folder, if it runs all passes."""
    from ptxc.passes.pipeline import BUILD, PIPELINE

    steps = [BUILD, *((item.rank, item.name) for item in PIPELINE)]
    if not start_at:
        return [*(f"{rank}-{name}.ir" for rank, name in steps), "out.ptx", "launch.json"]
    first = next((rank for rank, name in steps if name == start_at), 100)
    return [*(f"{rank}-{name}.ir" for rank, name in steps if rank >= first), "out.ptx"]


def _difference(label: str, before: str, old: str, after: str, new: str) -> str:
    """What a pass changed, as a unified diff."""
    if old == new:
        return f"// {label}: {after} changes nothing"
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), f"{label} after {before}", f"{label} after {after}", lineterm=""
    )
    return "\n".join(lines)


def launch_json(kernels: Sequence[CompiledKernel], graph: Graph | None = None) -> str:
    """The launch descriptions of kernels: what ``docs/launch.md`` explains.

    Of several kernels of a ``graph`` it is the plan: they are in the order of their launches, and buffers are listed.
    """
    from ptxc.plan import plan_of

    targets = {kernel.name: kernel.target for kernel in kernels}
    if graph is not None and len(kernels) > 1:
        described = plan_of(graph, kernels).to_dict()
    else:
        launches = [(kernel.name, kernel.launch) for kernel in kernels if kernel.launch is not None]
        described = {"kernels": [{"name": name, **launch.to_dict()} for name, launch in launches]}
    for at, kernel in enumerate(described["kernels"]):
        name = kernel.pop("name")
        described["kernels"][at] = {"name": name, "target": targets[name], **kernel}
    return compact(described) + "\n"
