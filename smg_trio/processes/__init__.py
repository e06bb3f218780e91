"""Several gateway processes on one listener: a keeper, and fronts that are all alike.

The keeper is the process that was started. It binds the listeners, lets engines in, owns what must be one (workers,
memory history, key limits, adapters, the metrics page) and starts the fronts by exec. A front is a gateway like the
only process of `--processes 1`, but for what it asks the keeper; it answers clients and talks to engines on a socket
pair of its own. Between them: a control channel each (`channel`), and the board (`core.board`).
"""
