"""Results kept on disk, under the digest of all that decides them: what was made once is not made again.

    folder     the store itself: entries that are whole or absent, damage, the bound on their size
    settings   which folder, how large, and the version of the code that made an entry
    content    what a kernel is, whatever its temporaries are called
    kernels    compiled kernels: by their content, and by the bytes of their file
    assemblies what ptxas made

docs/cache.md says what a user should know.
"""

from ptxc.store.folder import Entry, Store, Value, digest
from ptxc.store.settings import code_version, open_store

__all__ = ["Entry", "Store", "Value", "code_version", "digest", "open_store"]
