"""ptxc compiles the scheduled Kernel IR of Emmy to NVIDIA PTX."""
