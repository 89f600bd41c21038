"""Paged attention back ends behind one interface (`base`): plain torch, FlashAttention packages,
our Triton kernels. They read pages and never allocate them."""
