"""Bodies of requests on their way in: what they may hold together, and how they are unpacked."""
