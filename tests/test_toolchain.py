"""Finding CUDA's tools, and reading what ptxas says: the real one where it is found, and scripts in its place."""

from __future__ import annotations

import errno
import importlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ptxc import toolchain
from ptxc.errors import ToolchainError, WriteError
from ptxc.toolchain import Resources, assemble, find_ptxas, find_tool

Script = Callable[[str], Path]

PTX = """\
.version 7.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x) {
  .shared .align 4 .b8 tile[128];
  .reg .f32 v;
  .reg .b64 p;
  ld.param.u64 p, [x];
  cvta.to.global.u64 p, p;
  ld.global.f32 v, [p];
  st.shared.f32 [tile], v;
  bar.sync 0;
  ld.shared.f32 v, [tile+4];
  st.global.f32 [p], v;
  ret;
}
.visible .entry nothing() { ret; }
"""

#: What ptxas 13.0 says of a module whose second kernel calls two functions, and of one read by ptxas 9.
VERBOSE = """\
ptxas info    : 0 bytes gmem, 132 bytes cmem[3]
ptxas info    : Compiling entry function '_Z2k2Pfi' for 'sm_80'
ptxas info    : Function properties for _Z2k2Pfi
    800 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 42 registers, used 1 barriers, 800 bytes cumulative stack size, 364 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compile time = 174.416 ms
ptxas warning : Stack size for entry function 'k1' cannot be statically determined
ptxas info    : Compiling entry function 'k1' for 'sm_80'
ptxas info    : Function properties for k1
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, 400 bytes smem, 364 bytes cmem[0]
ptxas info    : Function properties for _Z1fiPi
    344 bytes stack frame, 68 bytes spill stores, 68 bytes spill loads
ptxas info    : Function properties for _Z1giPi
    32 bytes stack frame, 28 bytes spill stores, 28 bytes spill loads
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """``script(body)`` makes a shell script and makes it ptxas. In it, $source and $cubin are the files' names."""
    monkeypatch.setenv("PTXC_PTXAS", str(tmp_path / "ptxas"))

    def write(body: str) -> Path:
        path = tmp_path / "ptxas"
        path.write_text(f"#!/bin/sh\nwhile [ $# -gt 3 ]; do shift; done; source=$1 cubin=$3\n{body}\n")
        path.chmod(0o755)
        return path

    return write


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without CUDA, and a folder to install one in."""
    for variable in ("PTXC_PTXAS", "CUDA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr("sys.path", [str(tmp_path / "site")])
    return tmp_path


def install(path: Path, body: str = "") -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{body}")
    path.chmod(0o755)
    return path


def stranger(release: str, target: str) -> str:
    """What a ptxas that does not know ``target`` says."""
    return f"""echo "Cuda compilation tools, release {release}, V{release}.88"
        echo "ptxas fatal   : Value '{target}' is not defined for option 'gpu-name'"; exit 255"""


# Finding


def test_places_in_order(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolchainError) as error:
        find_ptxas()
    assert str(error.value) == (
        "ptxas was not found: $PTXC_PTXAS is not set, PATH has no ptxas, $CUDA_HOME is not set, and the Python package "
        "nvidia-cuda-nvcc is not installed; get it with: pip install nvidia-cuda-nvcc"
    )
    monkeypatch.setenv("CUDA_HOME", str(bare / "cuda"))
    in_wheels = ["site/nvidia/cuda_nvcc/bin", "site/nvidia/cu9/bin", "site/nvidia/cu13/bin"]
    for place in [*in_wheels, "cuda/bin", "path"]:  # each comes before those that are there already
        tool = install(bare / place / "ptxas")
        importlib.invalidate_caches()
        assert find_ptxas() == tool
    mine = install(bare / "mine/my-ptxas")
    monkeypatch.setenv("PTXC_PTXAS", str(mine))
    assert find_ptxas() == mine


def test_where_it_was_looked_for(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(bare / "site/nvidia/cu13/bin/nvcc")
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    with pytest.raises(ToolchainError, match=rf"nor has /opt/cuda/bin, nor has {bare}/site/nvidia/cu13/bin, and the"):
        find_ptxas()
    assert find_tool("nvcc").name == "nvcc"


def test_each_tool_names_its_package(bare: Path) -> None:
    with pytest.raises(ToolchainError, match=r"\$PTXC_NVDISASM is not set.*pip install nvidia-cuda-nvdisasm$"):
        find_tool("nvdisasm")


@pytest.mark.parametrize("kind", ["missing", "plain", "folder"])
def test_a_wrong_variable_is_an_error(bare: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    install(bare / "path/ptxas")
    wrong = bare / "ptxas"
    if kind == "plain":
        wrong.write_text("")
    elif kind == "folder":
        wrong.mkdir()
    monkeypatch.setenv("PTXC_PTXAS", str(wrong))
    with pytest.raises(ToolchainError, match=f"PTXC_PTXAS is {wrong}, which is no executable file"):
        find_ptxas()


# The real ptxas


@pytest.mark.needs("ptxas")
def test_assemble() -> None:
    made = assemble(PTX, "sm_80", options=["-O2"])
    assert made.cubin.startswith(b"\x7fELF")
    assert sorted(made.kernels) == ["nothing", "scale"]
    scale = made.kernels["scale"]
    assert scale.registers > 0
    assert (scale.shared, scale.barriers, scale.stack, scale.spill_stores, scale.spill_loads) == (128, 1, 0, 0, 0)
    assert scale.constant == sum(scale.constant_banks.values())
    assert made.kernels["nothing"].shared == 0
    assert made.warnings == ()
    assert 0 < made.seconds < 60


@pytest.mark.needs("ptxas")
def test_spills_and_warnings() -> None:
    loads = "\n".join(f"ld.volatile.global.f32 r{i}, [p+{4 * i}];" for i in range(64))
    stores = "\n".join(f"st.volatile.global.f32 [p+{4 * i}], r{i};" for i in range(64))
    ptx = PTX.replace("  ld.global.f32 v, [p];\n", f"  .reg .f32 r<64>;\n{loads}\n{stores}\n  ld.global.f32 v, [p];\n")
    made = assemble(ptx, "sm_80", options=["--maxrregcount=24", "--warn-on-spills"])
    scale = made.kernels["scale"]
    assert scale.registers <= 24
    assert scale.spill_stores > 0
    assert scale.spill_loads > 0
    assert scale.stack > 0
    assert made.warnings
    assert made.warnings[0].startswith("Registers are spilled to local memory in function 'scale'")


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bar.sync 0;", "bar.sink 0;", r"sm_80 at line 12, `bar\.sink 0;`: .*sink"),
        ("[tile]", "[slab]", r"at line 11, `st.shared.f32 \[slab\], v;`: Illegal .*'st', Unknown symbol 'slab'$"),
        ("f32 v;", "u32 v;", r"at line 10, .*: Arguments mismatch for instruction 'ld' \(and \d more\)$"),
        ("tile[128]", "tile[50000]", r"sm_80: Entry function 'scale' uses too much shared data \(0xc350 bytes"),
        (".version 7.0", "", r": Missing \.version directive at start of file"),
        (
            ".version 7.0",
            ".version 6.5",
            r"at line 2, `\.target sm_80`: PTX \.version 6\.5 does not support .target sm_80",
        ),
        (".version 7.0", ".version 99.0", r"/\S*ptxas reads PTX up to version [\d.]+, and the text is PTX 99\.0$"),
        ("7.0\n.target sm_80", "7.8\n.target sm_90", r"sm_80: SM version specified by \.target is higher"),
    ],
)
def test_ptxas_refuses(old: str, new: str, message: str) -> None:
    with pytest.raises(ToolchainError, match=message):
        assemble(PTX.replace(old, new), "sm_80")


@pytest.mark.needs("ptxas")
def test_unknown_target() -> None:
    message = r"ptxas [\d.]+ \(.+\) does not know sm_9999.*; a newer one may: pip install -U nvidia-cuda-nvcc"
    with pytest.raises(ToolchainError, match=message):
        assemble(PTX, "sm_9999")


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize("target", ["sm_70", "sm_72"])
def test_the_ptxas_of_a_development_environment_knows_volta(target: str) -> None:
    ptx = f".version 6.4\n.target {target}\n.address_size 64\n.visible .entry nothing() {{ ret; }}\n"
    assert assemble(ptx, target).cubin.startswith(b"\x7fELF")


# A script in its place


def test_verbose_text(script: Script) -> None:
    script(f"cat <<'END'\n{VERBOSE}END\nprintf cubin >$cubin")
    made = assemble(PTX, "sm_80")
    assert made.cubin == b"cubin"
    assert made.warnings == ("Stack size for entry function 'k1' cannot be statically determined",)
    assert made.kernels == {
        "_Z2k2Pfi": Resources(42, 16, 24, 800, 0, {0: 364, 2: 8}, 1),
        "k1": Resources(40, 0, 0, 0, 400, {0: 364}, 0),
    }
    assert made.kernels["_Z2k2Pfi"].constant == 372


def test_warning_of_a_line(script: Script) -> None:
    script('echo "ptxas $source, line 7; warning : Something"; : >$cubin')
    assert assemble(PTX, "sm_80").warnings == ("line 7: Something",)


@pytest.mark.parametrize(
    ("release", "target", "hint"),
    [
        ("13.0", "sm_70", "CUDA 12's does: pip install nvidia-cuda-nvcc-cu12"),
        ("13.1", "sm_101f", "since CUDA 13 it is called sm_110f"),
        ("11.8", "sm_90a", "CUDA 12.0's does: pip install -U nvidia-cuda-nvcc"),
        ("12.8", "sm_110", "CUDA 13.0's does: pip install -U nvidia-cuda-nvcc"),
        ("13.0", "sm_200", "a newer one may: pip install -U nvidia-cuda-nvcc"),
    ],
)
def test_who_knows_the_target(script: Script, release: str, target: str, hint: str) -> None:
    ptxas = script(stranger(release, target))
    with pytest.raises(ToolchainError) as error:
        assemble(PTX, target, ptxas=ptxas)
    assert str(error.value) == f"ptxas {release} ({ptxas}) does not know {target}; {hint}"


def test_a_ptxas_that_does_not_know_the_target_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{bare}/path:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_HOME", str(bare / "cuda"))
    monkeypatch.setenv("PTXC_PTXAS", str(install(bare / "mine/ptxas", stranger("13.0", "sm_70"))))
    install(bare / "path/ptxas", stranger("13.1", "sm_70"))
    install(bare / "cuda/bin/ptxas", stranger("13.2", "sm_70"))
    with pytest.raises(ToolchainError) as error:
        assemble(PTX, "sm_70")
    assert str(error.value) == (
        f"ptxas 13.0 ({bare}/mine/ptxas) does not know sm_70, nor does ptxas 13.1 ({bare}/path/ptxas), "
        f"nor does ptxas 13.2 ({bare}/cuda/bin/ptxas); CUDA 12's does: pip install nvidia-cuda-nvcc-cu12"
    )
    install(bare / "site/nvidia/cuda_nvcc/bin/ptxas", "while [ $# -gt 1 ]; do shift; done; echo wheel >$1")
    importlib.invalidate_caches()
    assert assemble(PTX, "sm_70").cubin == b"wheel\n"


def test_where_no_other_ptxas_was_found(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only = install(bare / "path/ptxas", stranger("13.0", "sm_70"))
    monkeypatch.setenv("PATH", f"{bare}/path:/usr/bin:/bin")
    with pytest.raises(ToolchainError, match=rf"^ptxas 13.0 \({only}\) does not know sm_70, and there is no other: "):
        assemble(PTX, "sm_70")


def test_which_cuda_reads_the_version(script: Script) -> None:
    script("""echo "ptxas $source, line 1; fatal   : Unsupported .version 8.8; current version is '8.0'"; exit 255""")
    with pytest.raises(ToolchainError, match=r"up to version 8.0, and the text is PTX 8.8; CUDA 12.9's reads it: pip"):
        assemble(PTX, "sm_80")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo Out of memory; exit 3", "ptxas ended with status 3 for sm_80: Out of memory"),
        ("kill -SEGV $$", "ptxas ended with status -11 for sm_80: it said nothing"),
        ("echo done", "ptxas made no file for sm_80: done"),
        ("printf 'ptxas fatal : \\377'; exit 1", "ptxas refuses the PTX for sm_80: \N{REPLACEMENT CHARACTER}"),
    ],
)
def test_ptxas_fails(script: Script, body: str, message: str) -> None:
    script(body)
    with pytest.raises(ToolchainError) as error:
        assemble(PTX, "sm_80")
    assert str(error.value) == message


def test_ptxas_does_not_run(script: Script) -> None:
    script("").write_text("#!/no/such/shell\n")
    with pytest.raises(ToolchainError, match="ptxas does not run: No such file or directory"):
        assemble(PTX, "sm_80")


def test_ptxas_hangs(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchain, "TIME_LIMIT", 1.0)
    script(f"sleep 1000 & echo $! >{tmp_path}/child; wait")
    with pytest.raises(ToolchainError, match=r"ptxas took longer than 1 s and was ended"):
        assemble(PTX, "sm_80")
    state = Path("/proc", (tmp_path / "child").read_text().strip(), "status")
    assert not state.exists() or "zombie" in state.read_text()  # its children are ended too


def test_nothing_is_left_behind(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    script("ls >$cubin; exit 1")
    with pytest.raises(ToolchainError):
        assemble(PTX, "sm_80")
    assert os.listdir(folder) == []


# ------------------------------------------------------------------------------------------------------------ room

#: An ELF file's header, whose section headers end at byte 128; and the whole file.
CUT_OFF = b"\x7fELF\x02\x01\x01".ljust(40, b"\0") + (64).to_bytes(8, "little") + bytes(10) + b"\x40\0\x01\0\0\0"
WHOLE = CUT_OFF.ljust(128, b"\0")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("kill -XFSZ $$", "File too large; raise the limit of files' sizes, ulimit -f"),
        ("exit 153", "File too large; raise the limit of files' sizes, ulimit -f"),  # of a shell that calls it
        (
            "echo 'ptxas fatal   : Internal error: writing file'; exit 255",
            "No space left on device; make room on that disk, or name another folder in TMPDIR",
        ),
        (f"printf '{''.join(f'\\{byte:03o}' for byte in CUT_OFF)}' > $cubin", "No space left on device; make room"),
        ("printf '\\177ELF' > $cubin", "No space left on device; make room"),
    ],
)
def test_a_tool_that_has_no_room(body: str, reason: str, script: Script) -> None:
    script(body)
    with pytest.raises(WriteError) as caught:
        assemble(PTX, "sm_80")
    assert f"cannot write temporary files in {tempfile.gettempdir()!r}: {reason}" in str(caught.value)
    assert caught.value.exit_status == 2


def test_a_whole_cubin_is_taken(script: Script) -> None:
    script(f"printf '{''.join(f'\\{byte:03o}' for byte in WHOLE)}' > $cubin")
    assert assemble(PTX, "sm_80").cubin == WHOLE


def test_a_folder_for_temporary_files_that_has_no_room(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    script("exit 1")
    for number, hint in ((errno.EFBIG, "ulimit -f"), (errno.ENOSPC, "TMPDIR"), (errno.EACCES, "TMPDIR")):
        monkeypatch.setattr(Path, "write_text", _failing(number))
        with pytest.raises(WriteError, match=f"cannot write temporary files.*{hint}"):
            assemble(PTX, "sm_80")
    monkeypatch.setattr("tempfile.TemporaryDirectory", _failing(errno.ENOENT))
    with pytest.raises(WriteError, match="cannot write temporary files"):
        assemble(PTX, "sm_80")


def _failing(number: int) -> Callable[..., None]:
    def fail(*args: object, **more: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail
