"""Typed settings that steps read, a module for each kind, so that an edit of one touches only the steps that use it."""
