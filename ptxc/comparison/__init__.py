"""ptxc and nvcc on the same kernels: what each takes to compile them, and what becomes of them as machine code.

`compare_file` gives a `Comparison` for each kernel of a file, with a `Build` by either compiler; `bars_of` holds many
against what ptxc is to reach. ``ptxc compare`` prints both; docs/compare.md explains the figures.

    sass       machine code: instructions, kinds, work          occupancy  how many CTAs fit a multiprocessor
    loops      the loops in it                                  builds     either way to machine code
    work       the hottest loop, and its cost of a unit of work bars       what is to be reached, and by which it is not
    pairs      both builds of a kernel                          picture    the ratios of many kernels, drawn
"""

from ptxc.comparison.bars import Bar, bars_of
from ptxc.comparison.builds import Build, check_tools
from ptxc.comparison.pairs import Comparison, compare_file

__all__ = ["Bar", "Build", "Comparison", "bars_of", "check_tools", "compare_file"]
