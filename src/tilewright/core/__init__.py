"""Vocabulary shared by every room: dtypes, symbolic dims, decisions, errors.  Imports no other room."""
