"""The mid-level IR: PTX-shaped SSA with block parameters. ``docs/ir.md`` is its reference."""
