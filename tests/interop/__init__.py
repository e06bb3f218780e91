"""Tests against real engines and vLLM's own API server; see conftest.py for what they need."""
