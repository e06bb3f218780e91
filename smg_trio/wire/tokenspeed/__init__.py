"""TokenSpeed's msgpack protocol, versions 0.1.0 and 0.1.1: requests, outputs, limits, codec.

Requests and outputs are positional arrays whose first element names their type. There are no utility
calls, no waves, and no multimodal or LoRA requests here.

The messages are those of TokenSpeed 0.1.1's `tokenspeed/runtime/engine/io_struct.py`, encoded by `zmq_msgpack.py` and
sent by `zmq_wire.py` beside it.
"""
