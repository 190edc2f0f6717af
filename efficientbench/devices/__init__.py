"""Devices: what this machine has, behind one interface. Knows torch, not megatron."""
