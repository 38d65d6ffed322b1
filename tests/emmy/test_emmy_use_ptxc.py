"""use_ptxc: Emmy's backend up to the cubin without nvcc, keys that are nobody else's, everything put back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from emmy.compiler import target as emmys
from emmy.compiler.backend import plan as plans
from emmy.compiler.backend.cuda import nvcc, program
from emmy.compiler.backend.cuda.backend import CudaBackend
from emmy.compiler.backend.cuda.program import _AsyncBenchWorker
from emmy.compiler.ir.kernel import render
from emmy.compiler.target import set_target
from emmy_lab import cuda_ops, linear

from ptxc.comparison import builds
from ptxc.compilation import Options
from ptxc.emmy import build, internals, use_ptxc
from ptxc.errors import CompileError, UnsupportedError, UsageError
from ptxc.store import Store
from ptxc.toolchain import find_ptxas

PLACES = (
    (render, "render_kernelop"), (plans, "_needs_arch_isa"), (nvcc, "nvcc_path"), (nvcc, "_toolkit_tag"),
    (nvcc, "_cubin_key"), (nvcc, "compile_to_cubin"), (_AsyncBenchWorker, "_WORKER_MODULE"),
)  # fmt: skip


def replaced() -> list[Any]:
    return [getattr(owner, name) for owner, name in PLACES]


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Emmy's target, and where it found nvcc, are forgotten after a test."""
    yield
    set_target(None)
    nvcc.nvcc_path.cache_clear()


@pytest.fixture
def without_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine where nothing is on PATH and CUDA is nowhere, but ptxas is known; the folder of Emmy's cubins."""
    monkeypatch.setenv("PTXC_PTXAS", str(find_ptxas()))
    monkeypatch.setenv("PATH", "")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EMMY_CUBIN_CACHE", str(tmp_path / "cubins"))
    nvcc.nvcc_path.cache_clear()
    set_target((8, 0))
    return tmp_path / "cubins"


# ------------------------------------------------------------------------------------------------- to the cubin


@pytest.mark.needs("ptxas")
def test_emmys_backend_without_nvcc(without_nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvcc.nvcc_path() is None
    with use_ptxc():
        compiled = CudaBackend().compile(linear())
        plan = plans.plan_from_graph(compiled)
        cubins = program._compile_kernels(plan)
        again = program._compile_kernels(plan)
    ((name, place),) = cubins.items()
    (op,) = cuda_ops(compiled)
    assert f".visible .entry {name}(" in op.kernel_source
    assert again == cubins
    assert Path(place).parent == without_nvcc
    assert Path(place).read_bytes().startswith(b"\x7fELF")
    assert [path.name for path in without_nvcc.iterdir()] == [Path(place).name]
    with pytest.raises(RuntimeError, match="nvcc unavailable"):
        program._compile_kernels(plan)


@pytest.mark.needs("ptxas")
def test_what_ptxas_refuses_is_a_kernel_that_does_not_compile(without_nvcc: Path) -> None:
    with use_ptxc(), pytest.raises(RuntimeError, match="ptxas refuses"):
        nvcc.compile_kernel(".version 7.0\n.target sm_80\n.address_size 64\nnonsense\n", "k", arch_specific=False)
    with use_ptxc(), pytest.raises(RuntimeError, match="lowered to CUDA, outside of use_ptxc"):
        nvcc.compile_to_cubin("__global__ void k() {}", "k", arch="sm_80")
    assert not list(without_nvcc.glob("*"))


def test_keys_are_never_nvccs(monkeypatch: pytest.MonkeyPatch) -> None:
    source, name, arch = ".target sm_80", "k", "sm_80"
    theirs = nvcc._cubin_key(source, name, arch)
    with use_ptxc():
        ours = nvcc._cubin_key(source, name, arch)
        assert nvcc._cubin_key(source, name, "sm_90") != ours != nvcc._cubin_key(source + " ", name, arch)
        monkeypatch.setenv("EMMY_NVCC_FLAGS", "-Xptxas -O1")
        assert nvcc._cubin_key(source, name, arch) != ours
        assert nvcc._toolkit_tag().startswith(build.PREFIX)
    assert ours.startswith("ptxc-")
    assert len(theirs) == 40
    assert int(theirs, 16)


def test_arithmetic_is_what_emmys_flags_say(monkeypatch: pytest.MonkeyPatch) -> None:
    set_target((9, 0))
    builder = build.Builder({"opt": 1})
    assert builder._options_now().math == "fast"  # Emmy's default
    monkeypatch.setenv("EMMY_FAST_MATH", "0")
    options = builder._options_now()
    assert (options.target, options.math, options.fma, options.opt) == ("sm_90", "precise", True, 1)
    monkeypatch.setenv("EMMY_NVCC_FLAGS", "--use_fast_math --fmad=false")
    options = builder._options_now()
    assert (options.math, options.fma) == ("fast", False)


@pytest.mark.parametrize(
    ("flags", "fast", "fused", "ptxas"),
    [
        ("-Xptxas -O1,-v --ptxas-options=-O2 -O3", False, True, ("-O1", "-v", "-O2")),
        ("-fmad false", False, False, ()),
        ("--fmad false -fmad=yes", False, True, ()),
        ("-use_fast_math=true", True, True, ()),
        ("-use_fast_math --use-fast-math=false --ftz=false", False, True, ()),
        ("-use_fast_math -ftz=true -prec-div false --prec-sqrt=false -lineinfo", True, True, ()),
    ],
)
def test_flags(flags: str, fast: bool, fused: bool, ptxas: tuple[str, ...]) -> None:
    assert build.Flags.read(flags.split()) == build.Flags(fast, fused, ptxas)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--ftz=true", "--ftz=true among EMMY_NVCC_FLAGS is not followed"),
        ("-prec-div false", "--prec-div=false among EMMY_NVCC_FLAGS is not followed"),
        ("-use_fast_math --prec-sqrt=true", "--prec-sqrt=true among EMMY_NVCC_FLAGS is not followed"),
        ("-fmad", "-fmad among EMMY_NVCC_FLAGS is neither true nor false"),
        ("-fmad -O3", "-fmad among EMMY_NVCC_FLAGS is neither true nor false"),
        ("-O3 -Xptxas", "there is nothing behind -Xptxas among EMMY_NVCC_FLAGS"),
    ],
)
def test_flags_that_are_not_followed(flags: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_target((9, 0))
    monkeypatch.setenv("EMMY_FAST_MATH", "0")
    monkeypatch.setenv("EMMY_NVCC_FLAGS", flags)
    with pytest.raises(UsageError, match=message):
        build.Builder({})._options_now()


# ---------------------------------------------------------------------------------------------- in and out again


def test_everything_is_put_back() -> None:
    before = replaced()
    with use_ptxc():
        inside = replaced()
        assert all(new is not old for new, old in zip(inside, before, strict=True))
        with use_ptxc():
            assert replaced() == inside
        assert replaced() == inside
    assert replaced() == before
    with pytest.raises(KeyError), use_ptxc():
        raise KeyError
    assert replaced() == before


def test_the_last_thread_that_leaves_puts_it_back() -> None:
    before, entered, leave = replaced(), threading.Event(), threading.Event()

    def other() -> None:
        with use_ptxc():
            entered.set()
            leave.wait(20)

    thread = threading.Thread(target=other)
    with use_ptxc():
        thread.start()
        assert entered.wait(20)
    assert replaced() != before
    leave.set()
    thread.join()
    assert replaced() == before


def test_options() -> None:
    before = replaced()
    with use_ptxc(opt=1), pytest.raises(UsageError, match="in use with the options"), use_ptxc():
        pass
    bad: list[dict[str, Any]] = [{"target": "sm_80"}, {"nonsense": 1}, {"opt": 7}, {"disable": ("nonsense",)}]
    bad += [{"disable": ("leave-ssa",)}, {"ptx_version": "x"}, {"time_passes": True}, {"cache": False}]
    for options in bad:
        with pytest.raises(UsageError), use_ptxc(**options):
            pass
    assert replaced() == before


# --------------------------------------------------------------------------------------- Emmy's CUDA text, beside it


def test_the_text_of_the_comparison_is_cuda(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    source, options = (ROOT / "golden" / "row_sum_tree" / "kernel.ir.json").read_bytes(), Options(target="sm_89")
    set_target((8, 0))
    with use_ptxc(), pytest.raises(UnsupportedError, match="no CUDA text of Emmy's inside use_ptxc"):
        builds.emmys_texts(source, options, kept)
    assert not list(kept.entries())
    (text,) = builds.emmys_texts(source, options, kept)
    assert "__global__" in text.source
    assert emmys.compute_capability() == (8, 0)
    monkeypatch.setattr(builds, "cuda_texts", lambda *_: [])
    assert builds.emmys_texts(source, options, kept) == [text]
    monkeypatch.setenv("EMMY_READABLE", "1")
    assert builds.emmys_texts(source, options, kept) == []


def test_nothing_is_replaced_where_something_cannot_be() -> None:
    before = replaced()
    replacement = internals.Replacement(build.Builder({}))
    replacement._new.append((render, "nosuch", None))
    with pytest.raises(KeyError):
        replacement.install()
    assert replaced() == before


def test_the_key_has_all_assemblers(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = set()
    for said in ("one", "one\ntwo"):
        monkeypatch.setattr(build, "tool_versions", lambda _, said=said: said)
        tags.add(build.Builder.toolkit())
    assert len(tags) == 2


# ------------------------------------------------------------------------------------------------ another Emmy


def test_another_version_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    before = replaced()
    monkeypatch.setattr(internals, "version", lambda: "0.9.1")
    monkeypatch.setattr(nvcc, "compile_to_cubin", lambda text, name: None)
    monkeypatch.delattr(nvcc, "_cubin_key")
    monkeypatch.delattr(_AsyncBenchWorker, "_WORKER_MODULE")
    with pytest.raises(UnsupportedError) as raised, use_ptxc():
        pass
    said = str(raised.value)
    assert "Emmy 0.9.1 is not what ptxc knows (0.3.22)" in said
    assert "nvcc.compile_to_cubin takes (text, name), not (source, name, arch)" in said
    assert "it has no function emmy.compiler.backend.cuda.nvcc._cubin_key" in said
    assert "_AsyncBenchWorker._WORKER_MODULE" in said
    assert "pip install emmy-ml==0.3.22" in said
    monkeypatch.undo()
    assert replaced() == before


def test_another_version_with_the_same_internals_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(internals, "version", lambda: "0.3.99")
    with use_ptxc():
        pass
    assert "Emmy 0.3.99 has the internals that ptxc knows of 0.3.22" in caplog.text


def test_a_kernel_without_a_target_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    set_target((0, 0))
    with pytest.raises(CompileError, match="no target is given"):
        build.Builder({})._options_now()
