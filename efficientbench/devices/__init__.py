"""Device types behind one interface. Imports torch, not megatron."""
