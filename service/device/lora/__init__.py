"""LoRA adapters (Hu et al. 2021): low-rank products beside those of the base model's matrices.

    weights             what an adapter is once it was read
    reader, adapter_config    read the files that PEFT writes, strictly
    store, slots        how an executor places adapters, and which one each slot has
    torch_adapters      products in torch, and what torch's decoder asks of a store
    triton_adapters     products in our kernels, and the table that captured graphs read

The native decoder's are in `service.device.native`.
"""
