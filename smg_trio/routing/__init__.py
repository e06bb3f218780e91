"""Which worker gets a request: the registry of workers, what is ready, and the policy that chooses.

This room knows workers and token ids, not text, HTTP or sockets.
"""
