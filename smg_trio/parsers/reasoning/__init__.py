"""Reasoning formats: how a model marks its reasoning."""
