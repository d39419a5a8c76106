"""Functions over the parts of a tree in processes of their own."""

from __future__ import annotations

import concurrent.futures
import os

import torch

from leafpack._tree.common import TensorDict, ops


def map_(
    self, fn, dim=0, num_workers=None, *, out=None, chunksize=None, num_chunks=None, pool=None, generator=None,
    max_tasks_per_child=None, worker_threads=1, pbar=False, mp_start_method=None,
):  # fmt: skip
    """Calls `fn` with parts of the tree along a batch dimension in other processes, and puts the results together.

    There are `num_workers` processes (one for each processor), and as many parts unless `chunksize` or `num_chunks`
    tells otherwise; with a `chunksize` of 0 the parts are single positions and the results are stacked. `fn` must be
    importable, and may return None for nothing. Tensors go there and back as shared memory. What `fn` raises is raised
    here; a process that dies is a RuntimeError. `pool` is one of multiprocessing's, to be used instead of a new one.
    `pbar` shows tqdm's bar, which must be installed.
    """
    results = list(
        map_iter(
            self, fn, dim, num_workers, chunksize=chunksize, num_chunks=num_chunks, pool=pool, generator=generator,
            max_tasks_per_child=max_tasks_per_child, worker_threads=worker_threads, pbar=pbar,
            mp_start_method=mp_start_method,
        )
    )  # fmt: skip
    results = [result for result in results if result is not None]
    if not results:
        return None
    combine = torch.stack if chunksize == 0 else torch.cat
    result = combine(results, _place(self, dim))
    if out is None:
        return result
    ops.update_in_place(out, result, False)
    return out


def map_iter(
    self, fn, dim=0, num_workers=None, *, shuffle=False, chunksize=None, num_chunks=None, pool=None, generator=None,
    max_tasks_per_child=None, worker_threads=1, pbar=False, mp_start_method=None,
):  # fmt: skip
    """As map, but yields one result after the other, in the order of the parts.

    With `shuffle` the positions are dealt out in random order.
    """
    dim = _place(self, dim)
    if chunksize is not None and num_chunks is not None:
        raise ValueError("give either chunksize or num_chunks")
    num_workers = os.cpu_count() if num_workers is None else num_workers
    if num_workers < 1 or worker_threads < 1 or (num_chunks is not None and num_chunks < 1):
        raise ValueError("map takes at least one worker, thread and chunk")
    if chunksize is not None and chunksize < 0:
        raise ValueError(f"map: parts of {chunksize}")
    tree = self
    if shuffle:
        order = torch.randperm(self.batch_size[dim], generator=generator)
        tree = ops.index(self, (*[slice(None)] * dim, order))
    if chunksize is None:
        parts = ops.chunk(tree, num_chunks or num_workers, dim)
    else:
        parts = ops.split(tree, chunksize, dim) if chunksize else ops.unbind(tree, dim)
    if pbar:
        import tqdm
    if pool is not None:
        results = pool.imap(fn, parts)
        return tqdm.tqdm(results, total=len(parts)) if pbar else results
    base = torch.randint(1 << 62, (), generator=generator).item()
    results = _results(fn, parts, num_workers, base, worker_threads, max_tasks_per_child, mp_start_method)
    return tqdm.tqdm(results, total=len(parts)) if pbar else results


def _place(tree, dim):
    count = len(tree.batch_size)
    if not -count <= dim < count:
        raise ValueError(f"map: dimension {dim} of a tree with {count} batch dimensions")
    return dim % count


def _results(fn, parts, num_workers, base, threads, max_tasks, start_method):
    context = torch.multiprocessing.get_context(start_method)
    started = context.Value("q", 0)
    with concurrent.futures.ProcessPoolExecutor(
        num_workers, context, _start, (base, started, threads), max_tasks_per_child=max_tasks
    ) as executor:
        try:
            yield from executor.map(fn, parts)
        except concurrent.futures.process.BrokenProcessPool as error:
            raise RuntimeError(f"map: a worker process died: {error}") from None
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


def _start(base, started, threads):
    """Runs in each worker: none repeats the random numbers of another."""
    with started.get_lock():
        number = started.value
        started.value += 1
    torch.manual_seed(base + number)
    torch.set_num_threads(threads)


def _padded(values, place, value, side):
    """Tensors of one size along `place`, and where each had elements of its own."""
    longest = max(tensor.shape[place] for tensor in values)
    padded, masks = [], []
    for tensor in values:
        missing = longest - tensor.shape[place]
        behind = 2 * (tensor.dim() - 1 - place)
        ends = (0, missing) if side == "right" else (missing, 0)
        padded.append(torch.nn.functional.pad(tensor, (*[0] * behind, *ends), value=value))
        own = torch.arange(longest, device=tensor.device)
        masks.append(own < tensor.shape[place] if side == "right" else own >= missing)
    return torch.stack(padded), torch.stack(masks)


def pad_sequence(
    list_of_tensordicts, pad_dim=0, padding_value=0.0, out=None, return_mask=False, padding_side="right"
):
    """A dense stack of trees whose tensors differ in size along one dimension.

    `pad_dim` counts the dimensions of tensors, those of the batch too. `padding_value` is a number, or a dict of numbers
    by key. With `return_mask` (True for "masks", or a key) the tree says what was there before.
    """
    trees = list(list_of_tensordicts)
    if not trees:
        raise ValueError("pad_sequence: no tree is given")
    if padding_side not in ("left", "right"):
        raise ValueError(f'padding_side must be "left" or "right", not {padding_side!r}')
    keys = trees[0].keys(True, True)
    for place, tree in enumerate(trees):
        if tree.keys(True, True) != keys:
            raise ValueError(f"pad_sequence: tree {place} has other keys than the first: {tree.keys(True, True)}")
    sizes = [max(sizes) for sizes in zip(*(tree.batch_size for tree in trees))]
    result = TensorDict(batch_size=(len(trees), *sizes))
    masks = TensorDict(batch_size=(len(trees),))
    for key in keys:
        values = [tree._get(key) for tree in trees]
        if not isinstance(values[0], torch.Tensor):
            if any(type(v) is not type(values[0]) or v != values[0] for v in values):
                raise ValueError(f"pad_sequence: {key!r}: plain values differ")
            result._set(key, values[0])
            continue
        number = padding_value.get(key, 0.0) if isinstance(padding_value, dict) else padding_value
        count = values[0].dim()
        if not -count <= pad_dim < count:
            raise ValueError(f"pad_sequence: {key!r}: dimension {pad_dim} of {count}")
        try:
            value, mask = _padded(values, pad_dim % count, number, padding_side)
        except RuntimeError as error:
            raise ValueError(f"pad_sequence: {key!r}: {error}") from None
        result._set(key, value)
        masks._set(key, mask)
    if return_mask:
        result._set("masks" if return_mask is True else return_mask, masks)
    if out is None:
        return result
    ops.update_in_place(out, result, False)
    return out


map_.__name__ = "map"
METHODS = {"map": map_, "map_iter": map_iter}
