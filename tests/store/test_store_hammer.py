"""Many processes at one store: see `hammer`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hammer import LIMIT, hammer

from ptxc.store import Store

#: The whole of it takes a minute of all cores.
SECONDS, PROCESSES = (60, 16) if os.environ.get("PTXC_WHOLE_HAMMER") else (3, 4)


@pytest.mark.usefixtures("kept")
def test_every_answer_is_right(tmp_path: Path) -> None:
    outcome = hammer(tmp_path / "store", SECONDS, PROCESSES)
    assert outcome.wrong == 0, outcome
    assert outcome.answers > outcome.misses > 0, outcome  # there was something to find, and to make again
    assert outcome.damaged, outcome
    assert outcome.killed, outcome
    assert outcome.size <= LIMIT, outcome
    assert Store(tmp_path / "store", LIMIT).verify()[1] == []
