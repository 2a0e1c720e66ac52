"""Graph operators to kernels, one file an operator family, and fusion of kernels."""
