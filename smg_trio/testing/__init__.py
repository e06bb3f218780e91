"""Shipped test tools: a fake engine for both engine protocols, an in-memory network, conformance checks.

The room stands at the far end of the wire. It decodes requests and encodes outputs with code of its own,
written from the protocol description, and never imports `smg_trio.wire`: a mistake made at one end cannot
hide at the other.

* `script`, `notation`: what the engine says.
* `options`, `commands`: how it behaves, what it was asked.
* `engine_core`, `lockstep`, `prefix_cache`, `engine_utilities`: the engine without IO; time is passed in.
* `messages`, `vllm_request`, `vllm_output`, `vllm_codec`, `tokenspeed_codec`, `tensors`, `codec`: its wire.
* `fake_engine`: the engine on any network, with controls for tests; `dialer`: what a network offers it.
* `zmq_engine`: the network of real sockets; `memory`: the one in memory, for lifecycle tests under a mock clock.
* `conformance`: what every `worker.links.Transport` must do.
* `fake_engine_cli`: ``smg-trio fake-engine``.

Import the modules; nothing is re-exported here, so that importing the room costs nothing.
"""
