"""Text of what was decided and measured; computes nothing."""
