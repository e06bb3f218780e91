"""Tests of Anthropic's API."""
