"""Many processes at one store: see `hammer.py`, which is a process of its own, as it forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ptxc.store import Store

HAMMER = Path(__file__).with_name("hammer.py")

#: The whole of it takes a minute of all cores.
SECONDS, PROCESSES = (60, 16) if os.environ.get("PTXC_WHOLE_HAMMER") else (3, 4)

#: Bytes that the store may have, as there.
LIMIT = 80_000


def test_every_answer_is_right(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    command = [sys.executable, "-W", "error", str(HAMMER), str(SECONDS), str(PROCESSES), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    outcome: dict[str, Any] = json.loads(done.stdout)
    assert outcome["wrong"] == 0, outcome
    assert outcome["answers"] > outcome["misses"] > 0, outcome  # there was something to find, and to make again
    assert outcome["damaged"], outcome
    assert outcome["killed"], outcome
    assert outcome["size"] <= LIMIT, outcome
    assert Store(folder, LIMIT).verify()[1] == []
