"""Copies between memory and shared memory by tensor maps, under one name for each: Triton 3.8 renamed them.

A kernel imports the names, so that its text is the same for every Triton. Example: `copy_in` is in all of them.
"""

from triton.experimental.gluon.language.nvidia.hopper import tma

copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
copy_out = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
