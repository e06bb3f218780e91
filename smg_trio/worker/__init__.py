"""One nursery per worker: handshake listener, input owner, dispatcher, silence watchdog, and their pure parts.

`nursery.Worker` is the only thing other rooms use: `generate` gives a request a scope at an engine,
`call_utility` asks the engine itself, `snapshot` and `wait_change` tell how it is. Requests enter the nursery and
outputs leave it through memory channels; nothing outside touches a socket.

Pure parts (no clock, no trio, no zmq): `requests` (in-flight ledger), `ranks` (scores), `waves` (lockstep clock),
`liveness` (silence clock), `handshake` (which message means what in which phase).

This room must not know text, HTTP or policies.
"""
