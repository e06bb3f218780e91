"""From a model's name to a directory with its small files: a local directory, the hub's cache, or a download.

``names`` tells hub names from paths, ``cache`` reads the cache as ``huggingface_hub`` lays it out, ``download`` fetches
what is missing with that library, ``failures`` says what went wrong and what to do, ``locating`` puts them together.

The library is imported only by a download: a start with a directory does not load it, one with a cached model only its
constants (where the cache is).
"""
