"""The nouns every room may use: requests, outputs, events, engine records, the error tree.

This room imports nothing of the package, does no IO and knows no clock. Every type here is a plain
record; behaviour lives in the rooms that own it.
"""
