"""From Emmy's Kernel IR to ptxc's: the interface of a kernel (:mod:`signature`), then its statements (:mod:`lower`)."""
