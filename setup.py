"""The optional compiled build: with ``PTXC_COMPILED=1``, mypyc makes C extensions of the modules that compile kernels.

Without the variable, and in an editable install, there is nothing to build. All else is in pyproject.toml.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_ext import build_ext

#: The folders and modules in which a compilation's time goes, and what in them stays plain: what reads files, and the
#: runner of passes, since mypyc leaves out the cause of ``raise ... from``. ``errors.py`` is not among them, since its
#: classes of exceptions would lose the attributes that they have from the class.
COMPILED = ("ir", "passes", "codegen", "frontend", "frontend/fragments", "target.py")
PLAIN = {"__init__", "emmys", "jsonfile", "operations", "pipeline", "reader", "reprs", "stages", "vocabulary"}
PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
#: How mypyc reads them. Of Emmy's types it knows nothing, since a field of a statement may hold anything: the code says
#: what is wrong with it, where mypyc would raise a TypeError, if it knew Emmy's annotations, as soon as it is read.
READING = ("--config-file=", "--python-version=3.12", "--follow-imports=silent", "--ignore-missing-imports")


class Compiled(Distribution):
    """A distribution with extension modules, which are known only when they are built."""

    def has_ext_modules(self) -> bool:
        """Yes, so the wheel is one for this Python and this kind of machine."""
        return True


class Mypyc(build_ext):
    """Translates the modules, then has the C compiler compile them."""

    def run(self) -> None:
        """Build all modules into one library, beside which each has its stub."""
        if self.editable_mode:
            return
        from mypyc.build import mypycify

        places = [Path("ptxc", name) for name in COMPILED]
        files = [file for place in places for file in (sorted(place.glob("*.py")) if place.is_dir() else [place])]
        modules = [str(file) for file in files if file.stem not in PLAIN]
        self.distribution.ext_modules = mypycify(
            [*READING, *modules],
            opt_level="2",
            debug_level="0",
            group_name="ptxc",
        )
        self.reinitialize_command(self)
        self.ensure_finalized()
        super().run()


if os.environ.get("PTXC_COMPILED") == "1":
    setup(distclass=Compiled, cmdclass={"build_ext": Mypyc}, setup_requires=PROJECT["optional-dependencies"]["compile"])
else:
    setup()
