"""The batch dimensions of a tree."""

from __future__ import annotations

from leafpack._tree.common import TensorDict, ops, sizes_of


def __len__(self):
    """The size of the first batch dimension; 0 without one."""
    sizes = self.batch_size
    return sizes[0] if sizes else 0


def __iter__(self):
    if not self.batch_size:
        raise TypeError(
            "a tree without batch dimensions cannot be iterated: keys(), values() and items() go over its entries"
        )
    return iter(ops.unbind(self, 0))


def split(self, split_size, dim=0):
    """Parts of this size, or of these sizes."""
    return ops.split(self, split_size, dim)


def chunk(self, chunks, dim=0):
    """At most this many parts of equal size."""
    return ops.chunk(self, chunks, dim)


def unbind(self, dim=0):
    """One tree per position of a batch dimension."""
    return ops.unbind(self, dim)


def stack(input, dim=0, *, out=None):
    """Trees of one structure along a new batch dimension. torch.stack does the same."""
    return _into_out(ops.stack(input, dim), out)


def cat(input, dim=0, *, out=None):
    """Trees of one structure one behind the other. torch.cat does the same."""
    return _into_out(ops.cat(input, dim), out)


def _into_out(result, out):
    if out is None:
        return result
    ops.update_in_place(out, result, False)
    return out


def view(self, *shape, size=None, batch_size=None):
    """The batch in another shape; views."""
    return ops.view(self, sizes_of(shape, size, batch_size))


def reshape(self, *shape, size=None):
    """The batch in another shape; leaves are copied where they must be."""
    return ops.reshape(self, sizes_of(shape, size))


def permute(self, *dims_list, dims=None):
    """Every batch dimension once, in a new order."""
    return ops.permute(self, sizes_of(dims_list, dims))


def transpose(self, dim0, dim1):
    """Two batch dimensions in each other's place."""
    return ops.transpose(self, dim0, dim1)


def squeeze(self, dim=None):
    """Without `dim` if its size is 1; without `dim` given, without all of size 1."""
    return ops.squeeze(self, dim)


def unsqueeze(self, dim):
    """With a new batch dimension of size 1."""
    return ops.unsqueeze(self, dim)


def expand(self, *shape):
    """The batch broadcast to this shape; -1 keeps a size."""
    return ops.expand(self, sizes_of(shape))


def flatten(self, start_dim=0, end_dim=-1):
    """Batch dimensions merged into one."""
    return ops.flatten(
        self, 0 if start_dim is None else start_dim, -1 if end_dim is None else end_dim
    )


def unflatten(self, dim, unflattened_size):
    """A batch dimension split into several."""
    return ops.unflatten(self, dim, unflattened_size)


def size(self, dim=None):
    """The batch size, or its size along `dim`."""
    return self.batch_size if dim is None else self.batch_size[dim]


def dim(self):
    """Number of batch dimensions."""
    return len(self.batch_size)


def _names(self):
    return ops.names(self) or [None] * len(self.batch_size)


_BATCH_SIZE = property(
    TensorDict.batch_size.fget, ops.set_batch_size, doc="The leading sizes of all tensors."
)


def rename(self, *names, **rename_map):
    """A tree of new nodes and the same tensors with these names of dimensions, or with some of them changed."""
    return rename_(self.copy(), *names, **rename_map)


def rename_(self, *names, **rename_map):
    """Names the batch dimensions; by keyword, gives those of these names new ones."""
    if names and rename_map:
        raise ValueError("give all names, or by keyword the new names of some")
    if rename_map:
        missing = [name for name in rename_map if name not in self.names]
        if missing:
            raise ValueError(f"no batch dimension is called {missing[0]!r}: {self.names}")
        names = [rename_map.get(name, name) for name in self.names]
    elif len(names) == 1 and (names[0] is None or isinstance(names[0], (list, tuple))):
        names = [None] * len(self.batch_size) if names[0] is None else names[0]
    self.names = names
    return self


def refine_names(self, *names):
    """Names dimensions that have none; ... stands for those that stay as they are."""
    names = list(names)
    if ... in names:
        place = names.index(...)
        behind = len(names) - place - 1
        stay = self.names[place : len(self.names) - behind]
        names[place : place + 1] = stay
    if len(names) != len(self.batch_size):
        raise ValueError(f"{len(names)} names for {len(self.batch_size)} batch dimensions")
    for old, new in zip(self.names, names):
        if old is not None and new != old:
            raise ValueError(f"the dimension {old!r} has a name already: it cannot become {new!r}")
    self.names = names
    return self


METHODS = {
    function.__name__: function
    for function in (
        __len__, __iter__, split, chunk, unbind, view, reshape, permute, transpose, squeeze, unsqueeze, expand, flatten,
        unflatten, size, dim, rename, rename_, refine_names,
    )
}  # fmt: skip
METHODS |= {
    "stack": staticmethod(stack),
    "cat": staticmethod(cat),
    "ndimension": dim,
    "batch_size": _BATCH_SIZE,
    "shape": _BATCH_SIZE,
    "batch_dims": property(dim),
    "ndim": property(dim),
    "swapaxes": transpose,
    "swapdims": transpose,
    "names": property(_names, ops.set_names, doc="Names of the batch dimensions."),
}
