"""Emmy's process for measurements, with ptxc: what Emmy starts as ``python -m`` under :func:`ptxc.emmy.use_ptxc`."""

from __future__ import annotations

from ptxc.emmy import use_ptxc


def main() -> None:
    """Serve Emmy's requests until its end of the pipe is closed. They hold kernels that are PTX already."""
    from emmy.compiler.backend.cuda import _bench_worker

    with use_ptxc():
        _bench_worker.main()


if __name__ == "__main__":
    main()
