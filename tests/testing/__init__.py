"""Tests of the testing room: the fake engine, the network in memory, the conformance checks."""
