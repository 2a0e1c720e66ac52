"""Code for CPUs through LLVM."""
