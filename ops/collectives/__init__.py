"""Operators that exchange values between devices, or between processes."""
