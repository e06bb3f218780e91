"""Generations on their way: sessions, streams, the Responses API's runs and socket."""
