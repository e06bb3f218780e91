"""vLLM's engine core protocol, versions 0.27.1 to 0.33.0: requests, outputs, limits, codec.

Structures are positional arrays that only ever grow at the end, so they are read by index, and longer
and (from the defaults) shorter arrays are accepted at every level.

The structures are those of vLLM 0.32.0's `vllm/v1/engine/__init__.py`, which later versions extend; each module names
its own files.
"""
