"""TokenSpeed's msgpack protocol, versions 0.1.0 and 0.1.1: requests, outputs, limits, codec.

Requests and outputs are positional arrays whose first element names their type. There are no utility
calls, no waves, and no multimodal or LoRA requests here.
"""
