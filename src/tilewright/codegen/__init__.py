"""Kernels to machine code, one package a target."""
