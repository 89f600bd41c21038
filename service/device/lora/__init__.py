"""LoRA adapters (Hu et al. 2021): low-rank products beside those of the base model's matrices.

weights     what an adapter is once it was read
reader      reads the files that PEFT writes, strictly
"""
