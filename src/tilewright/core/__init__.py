"""Vocabulary of every room: dtypes, symbolic dims, decisions, errors.  Imports no other room."""
