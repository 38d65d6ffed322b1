"""The CPU device: PTX text in, executed over NumPy arrays; :mod:`ptxc.sim.device` is the way in.

The way of a text::

    lexer, parser   text -> syntax tree (``syntax``)
    linker          tree -> one flat program an entry (``program``): names resolved, calls inlined
    cfg             program -> basic blocks, with the order in which threads run them
    kernel          blocks -> closures, through one table of opcodes
    arguments       what a launch is given, held against what it must be
    device          a launch: batches of CTAs, one ``machine`` each
    scheduler       runs blocks, parts and joins threads, lets them wait (``barrier``, ``warp``)
    access, memory  loads and stores, held against the bounds of what they name
    order, touches, race, global_race, initialization, findings
                    what the checks watch, and what they say
    profile         what was executed how often, and how memory accesses fell

To add an instruction, add a row to the table of its kind; ``kernel.action_of`` finds it there:

- a function of its operands alone: ``integer``, ``real``, ``logic`` or ``convert``. The row takes the modifiers off the
  instruction and returns a ``Pure``: result types, source types, a function of arrays. A modifier that the row leaves
  is refused, so nothing is ever skipped in silence.
- one that acts on memory or on the machine: ``movement``, ``atomics``, ``asynchronous``. The row returns an action,
  a function of the machine and the active threads.
- one at which the lanes of a warp meet (tensor-core operations too): ``warp``. The row returns a ``Collective``.
- another kind of waiting or of jump: an ``End`` in ``kernel`` and its method in ``scheduler``.
"""
