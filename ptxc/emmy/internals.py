"""What of Emmy :func:`ptxc.emmy.use_ptxc` replaces, and whether the installed Emmy has it as ptxc knows it.

Emmy has no interface for another compiler of its kernels. These are its internals, so each is held against the
signature that it has in the versions of :data:`KNOWN` before anything is replaced.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ptxc.errors import UnsupportedError

if TYPE_CHECKING:
    from ptxc.emmy.build import Builder

#: The versions of Emmy whose internals were read for this.
KNOWN = ("0.3.22",)

_log = logging.getLogger("ptxc.emmy")


class Internal(NamedTuple):
    """A function of Emmy's, by its module and name, with the names of its parameters in order."""

    module: str
    name: str
    parameters: tuple[str, ...]

    @property
    def path(self) -> str:
        """Its full name."""
        return f"{self.module}.{self.name}"


_NVCC = "emmy.compiler.backend.cuda.nvcc"
_RENDER = "emmy.compiler.ir.kernel.render"

#: What is replaced, by the method of :class:`~ptxc.emmy.build.Builder` that takes its place.
REPLACED = {
    # A kernel's text, which the rule of the CUDA lowering puts into its CudaOp.
    "render": Internal(
        _RENDER,
        "render_kernelop",
        (
            "kernel_op", "tensors", "shapes", "literal_constants", "runtime_args", "indirect_inputs", "paged_buffers",
            "starts",
        ),
    ),
    # Whether a text needs a target's own features: Emmy looks for names of its CUDA functions.
    "needs_own_features": Internal("emmy.compiler.backend.plan", "_needs_arch_isa", ("op",)),
    # From a text to a cubin in Emmy's cache.
    "tool": Internal(_NVCC, "nvcc_path", ()),
    "toolkit": Internal(_NVCC, "_toolkit_tag", ()),
    "key": Internal(_NVCC, "_cubin_key", ("source", "name", "arch")),
    "compile_to_cubin": Internal(_NVCC, "compile_to_cubin", ("source", "name", "arch")),
}  # fmt: skip

#: What is called, and must be as it is known, but stays.
CALLED = (
    Internal(_NVCC, "effective_flags", ()),
    Internal(_NVCC, "cubin_cache_dir", ()),
    Internal("emmy.compiler.target", "compute_capability", ()),
)

#: The rule whose call of ``render_kernelop`` is what this is about, beside Emmy's pipeline.
_RULE = Path("passes", "lowering", "cuda", "010_lower_kernelop.py")

#: The class that starts Emmy's process for measurements, and where it says which module that runs.
_WORKER = ("emmy.compiler.backend.cuda.program", "_AsyncBenchWorker", "_WORKER_MODULE")


def version() -> str:
    """The version of the installed Emmy, ``unknown`` where it does not say."""
    try:
        return metadata.version("emmy-ml")
    except metadata.PackageNotFoundError:
        return "unknown"


def check() -> None:
    """Raise UnsupportedError, with all differences, unless Emmy's internals are those that are known.

    Another version with the same internals is taken, with a warning in the log.
    """
    differences = [text for internal in (*REPLACED.values(), *CALLED) if (text := _difference(internal))]
    differences += _difference_of_rule() + _difference_of_worker()
    found = version()
    if differences:
        raise UnsupportedError(
            f"Emmy {found} is not what ptxc knows ({', '.join(KNOWN)}): {'; '.join(differences)}",
            hint=f"pip install emmy-ml=={KNOWN[-1]}, or a ptxc that knows Emmy {found}",
        )
    if found not in KNOWN:
        _log.warning("Emmy %s has the internals that ptxc knows of %s", found, ", ".join(KNOWN))


def _difference(internal: Internal) -> str:
    """How a function differs from what is known; empty where it does not."""
    try:
        function = getattr(importlib.import_module(internal.module), internal.name)
        parameters = tuple(inspect.signature(function).parameters)
    except (ImportError, AttributeError, TypeError, ValueError):
        return f"it has no function {internal.path}"
    if parameters != internal.parameters:
        return f"{internal.path} takes ({', '.join(parameters)}), not ({', '.join(internal.parameters)})"
    return ""


def _difference_of_rule() -> list[str]:
    import emmy.compiler.pipeline as pipeline

    rule = Path(pipeline.__file__).parent / _RULE
    imported = f"from {_RENDER} import"
    if rule.exists() and imported in (text := rule.read_text(encoding="utf-8")) and "render_kernelop(" in text:
        return []
    return [f"its rule {_RULE} does not call render_kernelop"]


def _difference_of_worker() -> list[str]:
    module, name, attribute = _WORKER
    try:
        known = isinstance(getattr(getattr(importlib.import_module(module), name), attribute), str)
    except (ImportError, AttributeError):
        known = False
    return [] if known else [f"it has no {module}.{name}.{attribute}"]


class Replacement:
    """Emmy's internals replaced by a builder's methods, and put back."""

    def __init__(self, builder: Builder) -> None:
        """Nothing is replaced yet. Raises UnsupportedError (:func:`check`)."""
        check()
        self._new: list[tuple[Any, str, Any]] = [
            (importlib.import_module(internal.module), internal.name, getattr(builder, method))
            for method, internal in REPLACED.items()
        ]
        module, name, attribute = _WORKER
        self._new.append((getattr(importlib.import_module(module), name), attribute, "ptxc.emmy.worker"))
        self._old: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        """Replace everything, or nothing where that raises."""
        try:
            for owner, name, value in self._new:
                self._old.append((owner, name, vars(owner)[name]))
                setattr(owner, name, value)
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        """Put back what was there, in the reverse order."""
        while self._old:
            owner, name, value = self._old.pop()
            setattr(owner, name, value)
