"""The passes, one file each; :mod:`ptxc.passes.pipeline` is their ordered table and the runner."""
