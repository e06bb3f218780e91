"""Request parameters that endpoints share: readers, sampling, structured outputs, schemas, regexes and their limits."""
