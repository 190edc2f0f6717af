"""The part of torch_npu.contrib that this project uses."""
