"""Data only: rows of devices, each with its source."""
