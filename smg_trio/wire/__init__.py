"""Bytes to core types and back, for both engine protocols. Pure: no IO, no event loop, no clock.

What is here: the addresses a worker URL stands for (`addresses`), the start-up messages both protocols
share (`handshake`), one codec per protocol behind one interface (`codec`), the tensor triples both use
(`tensors`), and what must be refused before it reaches an engine (`limits`).

What is not known here: sockets, order of messages in time, which request is in flight, text.
Everything that comes from an engine is distrusted: a frame that does not follow the protocol raises
`ProtocolViolation`, never anything else.
"""
