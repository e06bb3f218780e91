"""Tests of the wire room, one module per module."""
