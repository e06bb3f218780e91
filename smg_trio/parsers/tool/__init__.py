"""Tool-call formats: one small module, or one record, per family."""
