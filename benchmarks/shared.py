"""The folder of kernels and tools that lies beside the repository on some machines."""

from __future__ import annotations

import os
from pathlib import Path

#: It is ``../shared`` beside the repository, or where the environment variable ``PTXC_SHARED`` says.
SHARED = Path(os.environ.get("PTXC_SHARED", Path(__file__).resolve().parents[2] / "shared"))
