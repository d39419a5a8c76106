"""Versions of this package and of the torch it was built with."""

__version__ = "0.1.0"

# The C++ part is bound to this minor version of torch.
torch_version = "2.13"
