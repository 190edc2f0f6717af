"""The models of the matrix on megatron-core's GPTModel. With training/, the only importer of megatron."""
