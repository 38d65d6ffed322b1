"""Which ptxc this is."""

import time

__version__ = "0.1.0"

#: When this process began to load ptxc, in seconds since 1970: sources that changed later are not what it runs.
LOADED = time.time()


def is_compiled() -> bool:
    """Whether this is the compiled build, whose inner modules are C extensions (setup.py)."""
    from ptxc import target

    return not target.__file__.endswith(".py")
