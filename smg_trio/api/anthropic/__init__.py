"""Anthropic's HTTP API: Messages, token counting, models.

A Messages body becomes a `ChatRequest`, so that rendering, sampling and generating are the same as for a chat;
the answer's events become content blocks, streamed (`stream`) or folded (`fold`).
"""
