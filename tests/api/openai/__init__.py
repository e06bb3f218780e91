"""Tests of the OpenAI APIs."""
