"""Generations on their way: sessions, streams, the Responses API's runs, deadlines, and what is in flight."""
