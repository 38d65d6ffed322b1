"""The process pool: what comes while a process is started waits until it is."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import BrokenExecutor, Future
from typing import Any

import pytest

from ptxc.batching.pool import Pool


class Starting:
    """An executor that a signal meets in the middle of starting a process."""

    def __init__(self, number: signal.Signals, broken: bool) -> None:
        self.number = number
        self.broken = broken
        self.started = 0

    def submit(self, function: Any, *args: Any) -> Future[Any]:
        signal.raise_signal(self.number)
        self.started += 1
        if self.broken:
            raise BrokenExecutor
        return Future()


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_a_process_has_been_started(number: signal.Signals, broken: bool) -> None:
    def end(number: int, frame: object) -> None:
        raise SystemExit(number)

    pool = Pool(1)
    starting = Starting(number, broken)
    before = signal.signal(number, end)
    try:
        pool._executor = starting  # type: ignore[assignment]
        with pytest.raises(SystemExit):
            pool.submit(print)
        assert starting.started == 1
        assert signal.getsignal(number) is end
    finally:
        signal.signal(number, before)
        pool.close()


def test_other_threads_submit_too() -> None:
    pool = Pool(1)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(pool.submit(len, "abc").result(60)))
    thread.start()
    thread.join(60)
    pool.close()
    assert found == [3]
