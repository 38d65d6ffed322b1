"""The CPU device: PTX text in, executed; ``ptxc.sim.device`` is the way in."""
