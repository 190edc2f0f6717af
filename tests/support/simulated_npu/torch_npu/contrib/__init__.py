"""What torch_npu.contrib holds, as far as it is used."""
