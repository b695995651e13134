"""Typed settings that steps read, one module per kind, so that an edit affects only the steps that use it."""
