"""Tests of the vLLM protocol."""
