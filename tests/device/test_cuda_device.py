"""`ptxc.device("cuda")` on the fake driver: what is passed, what comes back, and what goes wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

import ptxc
from ptxc.compilation import CompiledKernel
from ptxc.device.cuda import CudaDevice, Pointers
from ptxc.device.worker import Worker
from ptxc.errors import DeviceError, InputError, UsageError
from ptxc.reference.buffers import problem_of
from ptxc.reference.execution import Settings, execute, load
from ptxc.reference.steps import steps_of

GOLDEN = ROOT / "golden"

#: z[i] = a * x[i] for i < n, with a float and an integer; z first.
SCALE = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 z, .param .u64 x, .param .f32 a, .param .u32 n) {
    .reg .b64 %p<5>; .reg .f32 %f<3>; .reg .b32 %r<3>; .reg .pred %q;
    mov.u32 %r0, %tid.x;
    ld.param.u32 %r1, [n];
    setp.ge.u32 %q, %r0, %r1;
    @%q bra end;
    ld.param.u64 %p0, [z]; ld.param.u64 %p1, [x]; ld.param.f32 %f0, [a];
    mul.wide.u32 %p2, %r0, 4;
    add.s64 %p3, %p1, %p2; add.s64 %p4, %p0, %p2;
    ld.global.f32 %f1, [%p3];
    mul.f32 %f2, %f0, %f1;
    st.global.f32 [%p4], %f2;
end:
    ret;
}
"""
#: z[0] = *table[1].
SECOND = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry second(.param .u64 z, .param .u64 table) {
    .reg .b64 %p<3>; .reg .b32 %r;
    ld.param.u64 %p0, [z]; ld.param.u64 %p1, [table];
    ld.global.u64 %p2, [%p1+8];
    ld.global.b32 %r, [%p2];
    st.global.b32 [%p0], %r;
    ret;
}
"""


@pytest.fixture
def gpu(fake_gpu: Path) -> CudaDevice:
    return ptxc.device("cuda", deadline=20.0)


def compiled(name: str, **options: Any) -> list[CompiledKernel]:
    return ptxc.compile(GOLDEN / name / "kernel.ir.json", **options)


# ------------------------------------------------------------------------------------------------ what is launched


def test_a_gpu_is_described(gpu: CudaDevice) -> None:
    found = gpu.description
    assert (found.name, found.sm, found.cuda, found.l2) == ("Fake GPU", "sm_90", "13.1", 1024)


def test_the_child_does_not_run_what_lies_in_the_current_folder(
    fake_gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ptxc").mkdir()
    (tmp_path / "ptxc" / "__init__.py").write_text("raise SystemExit('another')\n")
    monkeypatch.chdir(tmp_path)
    worker = Worker()
    try:
        assert worker.describe()["name"] == "Fake GPU"
    finally:
        worker.close()


def test_arguments_are_passed_in_order_and_arrays_come_back(gpu: CudaDevice) -> None:
    z, x = np.zeros(8, np.float32), np.arange(8, dtype=np.float32)
    result = gpu.load(SCALE).launch("scale", 1, 32, [z, x, 2.5, 6])
    assert (result.completed, result.findings, result.statistics.threads) == (True, [], 32)
    assert z.tolist() == [0.0, 2.5, 5.0, 7.5, 10.0, 12.5, 0.0, 0.0]
    assert x.tolist() == list(range(8))


def test_what_is_read_only_is_not_read_back(gpu: CudaDevice) -> None:
    z, x = np.zeros(8, np.float32), np.ones(8, np.float32)
    z.flags.writeable = False
    gpu.load(SCALE).launch("scale", 1, 32, [z, x, 2.5, 8])
    assert not z.any()


def test_one_array_is_one_buffer(gpu: CudaDevice) -> None:
    x = np.ones(8, np.float32)
    gpu.load(SCALE).launch("scale", 1, 32, [x, x[:], 3.0, 4])
    assert x.tolist() == [3.0] * 4 + [1.0] * 4


def test_a_table_of_addresses(gpu: CudaDevice) -> None:
    z, first, second = np.zeros(1, np.int32), np.array([7], np.int32), np.array([9], np.int32)
    gpu.load(SECOND).launch("second", 1, 1, [z, Pointers((first, second))])
    assert z[0] == 9


def test_a_cubin_takes_arguments_as_they_are(gpu: CudaDevice) -> None:
    z, x = np.zeros(8, np.float32), np.ones(8, np.float32)
    module = gpu.load(b"\x7fELF" + SCALE.encode())
    module.launch("scale", 1, 32, [z, x, 2.5, 6])
    assert z.sum() == 15
    module.launch("scale", 1, 32, [z, x, np.float32(1.0), np.uint32(8)])
    assert z.sum() == 8
    with pytest.raises(UsageError, match=r"^scale: parameter 3 of scale has 4 bytes, its argument 8$"):
        module.launch("scale", 1, 32, [z, x, 2.5, np.int64(6)])


SHOWN = ("row_sum_tree", "mma_matmul_f16", "matmul_async", "big_sum_split", "norm_matmul")


@pytest.mark.parametrize("name", SHOWN)
def test_kernels_compute_what_they_do_on_the_cpu_device(gpu: CudaDevice, name: str) -> None:
    kernels = compiled(name, target="sm_90")
    steps = steps_of(kernels)
    problem = problem_of(steps, {}, {})
    here, there = problem.arrays(), problem.arrays()
    texts = {kernel.name: kernel.ptx for kernel in kernels}
    execute(load(texts), steps, here, problem.integers, Settings())
    execute(load(texts, gpu), steps, there, problem.integers, Settings())
    for buffer in problem.written:
        assert here[buffer.name].tobytes() == there[buffer.name].tobytes(), buffer.name


def test_tensor_maps_and_runtime_integers(gpu: CudaDevice) -> None:
    kernels = compiled("tma_matmul_dynamic", target="sm_90")
    steps = steps_of(kernels)
    assert steps[0].launch.tensor_maps
    problem = problem_of(steps, {integer.name: 100 for integer in steps[0].launch.runtime}, {})
    here, there = problem.arrays(), problem.arrays()
    texts = {kernel.name: kernel.ptx for kernel in kernels}
    execute(load(texts), steps, here, problem.integers, Settings())
    execute(load(texts, gpu), steps, there, problem.integers, Settings())
    assert all(here[buffer.name].tobytes() == there[buffer.name].tobytes() for buffer in problem.written)


def test_times_are_the_events_and_leave_the_arrays(gpu: CudaDevice, fake_gpu: Path) -> None:
    z, x = np.zeros(8, np.float32), np.ones(8, np.float32)
    timing = gpu.load(SCALE).time("scale", 1, 32, [z, x, 2.5, 6], zero=[z], repeat=4, warmup=1)
    assert timing.samples == pytest.approx([1.0] * 4)
    assert timing.median == pytest.approx(1.0)
    assert not z.any()
    # The zeros, twice the L2 cache, and between the events the launch alone.
    number = np.float32(2.5).view(np.int32)
    sample = ["memset 32", "memset 2048", "event", f"launch scale {number} 6", "event"]
    assert fake_gpu.read_text().splitlines() == [*sample * 5, *["free"] * 3, "unload"]


# ------------------------------------------------------------------------------------------------ what goes wrong


def test_a_kernel_that_hangs_is_an_error_after_the_deadline(fake_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPU", "hang")
    device = ptxc.device("cuda", deadline=0.5)
    module, z, x = device.load(SCALE), np.zeros(8, np.float32), np.ones(8, np.float32)
    start = time.monotonic()
    with pytest.raises(
        DeviceError, match=r"^scale: the launch did not end within 0\.5 s; the kernel hangs, or"
    ) as raised:
        module.launch("scale", 1, 32, [z, x, 2.5, 6])
    assert time.monotonic() - start < 30
    assert raised.value.exit_status == 2
    monkeypatch.delenv("FAKE_GPU")
    module.launch("scale", 1, 32, [z, x, 2.5, 6])  # in a new process
    assert z.sum() == 15


def test_a_crash_of_the_child_names_the_signal(fake_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPU", "crash")
    with pytest.raises(DeviceError, match=r"^scale: the process with the GPU ended by signal SIGSEGV"):
        ptxc.device("cuda").load(SCALE).launch("scale", 1, 32, [np.zeros(8), np.zeros(8), 2.5, 6])


def test_an_illegal_address_is_the_drivers_error_and_the_next_launch_works(gpu: CudaDevice) -> None:
    module = gpu.load(SCALE)
    z, x = np.zeros(8, np.float32), np.ones(8, np.float32)
    with pytest.raises(DeviceError, match=r"^scale: cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS: illegal address; "):
        module.launch("scale", 1, 32, [z, x, 2.5, 20])
    assert not z.any()
    module.launch("scale", 1, 32, [z, x, 2.5, 8])
    assert z.sum() == 20


def test_what_the_drivers_assembler_says_is_quoted(gpu: CudaDevice) -> None:
    module = gpu.load(b"\x7fELF" + SCALE.encode().replace(b"mov.u32", b"mov u32 ?"))
    with pytest.raises(DeviceError, match=r"^scale: cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX: invalid ptx: PTX line"):
        module.launch("scale", 1, 32, [])


def test_what_does_not_fit_is_said_before_anything_is_launched(gpu: CudaDevice, fake_gpu: Path) -> None:
    module = gpu.load(SCALE)
    z, x = np.zeros(8, np.float32), np.ones((8, 2), np.float32)
    for error, what, call in (
        (InputError, r"^the PTX has no entry 'scales'; it has scale$", ("scales", 1, 32, [z, x, 1.0, 1])),
        (UsageError, r"^3 arguments are given, the entry has 4 parameters; ", ("scale", 1, 32, [z, x, 1.0])),
        (UsageError, r"^the array for x is not contiguous; ", ("scale", 1, 32, [z, x[:, 0], 1.0, 1])),
        (UsageError, r"^an array is given for the parameter n of type \.u32", ("scale", 1, 32, [z, x, 1.0, z])),
        (UsageError, r"^the grid \(0, 1, 1\) has an extent below 1; ", ("scale", 0, 32, [z, x, 1.0, 1])),
    ):
        with pytest.raises(error, match=what):
            module.launch(*call)  # type: ignore[arg-type]
    assert not fake_gpu.exists()
    with pytest.raises(UsageError, match=r"^PTX text is a str and a cubin is bytes, not of type int; "):
        gpu.load(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^the deadline is 0; give seconds"):
        ptxc.device("cuda", deadline=0)


def test_no_gpu_is_said(fake_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPU", "none")
    with pytest.raises(
        DeviceError, match=r"^there is no GPU to use \(cuInit: CUDA_ERROR_NO_DEVICE: no device\); `nvidia"
    ):
        ptxc.device("cuda")
    monkeypatch.delenv("FAKE_GPU")
    with pytest.raises(DeviceError, match=r"^there is no GPU to use \(there is no GPU 3, the driver has 1\); "):
        ptxc.device("cuda", ordinal=3)


def test_a_missing_package_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        DeviceError, match=r"^the package cuda-bindings is not installed \(.*; install it: pip install 'p"
    ):
        ptxc.device("cuda")


def test_the_child_ends_with_its_parent_even_while_a_kernel_hangs(fake_gpu: Path) -> None:
    program = (
        "import ptxc, numpy as np, sys; sys.path[:0] = sys.argv[2:]\n"
        "device = ptxc.device('cuda')\n"
        "print(device._worker._child._process.pid, flush=True)\n"
        "z = np.zeros(8, np.float32)\n"
        "device.load(open(sys.argv[1]).read()).launch('scale', 1, 32, [z, z, 1.0, 8])\n"
    )
    text = fake_gpu.with_name("scale.ptx")
    text.write_text(SCALE)
    command = [sys.executable, "-P", "-c", program, str(text), *sys.path[:2]]
    environment = {**os.environ, "FAKE_GPU": "hang"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        _until(fake_gpu.exists)
        os.kill(parent.pid, signal.SIGKILL)
    _until(lambda: not _lives(child))


def _until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def _lives(process: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_example_of_the_page_runs(fake_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "gpu.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    assert (names["y"] == 100).all()
