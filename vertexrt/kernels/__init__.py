"""Kernels: what runs task programs, one backend a device, all on the protocol of `layout`."""
