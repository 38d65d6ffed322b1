"""Make .venv, with ptxc and its development tools in it, for `scripts/setup`, which finds the Python that runs this.

Of several calls at the same time one works and the others wait for it. An environment counts as made once its stamp
is written, at the very end; one without a stamp is made anew. When only pyproject.toml changed since, pip brings the
environment up to date.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "pyproject.toml"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "stamp"


def main() -> int:
    """Make the environment or bring it up to date; the exit status."""
    with PROJECT.open(encoding="utf-8") as project:
        fcntl.flock(project, fcntl.LOCK_EX)  # given back when the process ends, however it ends
        stamp = f"{ROOT}\n{project.read()}"
        made = STAMP.read_text(encoding="utf-8") if STAMP.exists() and os.access(PYTHON, os.X_OK) else ""
        if made == stamp:
            return 0
        if made.startswith(f"{ROOT}\n"):
            print("Bringing .venv up to date with pyproject.toml", file=sys.stderr, flush=True)
            STAMP.unlink()
        else:
            version = ".".join(map(str, sys.version_info[:3]))
            print(f"Making .venv with Python {version}, once; a minute or two", file=sys.stderr, flush=True)
            if VENV.exists():
                shutil.rmtree(VENV)
            venv.create(VENV, with_pip=True, symlinks=True)
        # -qq keeps pip's errors and drops its notes: on its own newer version, on package indexes that are not there.
        status = subprocess.run([PYTHON, "-m", "pip", "install", "-qq", "-e", f"{ROOT}[dev]"]).returncode
        if status:
            print("The setup failed, for the reason above. The next call starts it again.", file=sys.stderr)
        else:
            STAMP.write_text(stamp, encoding="utf-8")
        return status


if __name__ == "__main__":
    sys.exit(main())
