"""Programs about groups: how they are made, sub-groups, and their end."""

import os
import signal
import time

import torch
import torch.distributed as dist

import leafpack
from rank_program import RANK, SIZE, check_usable, finish, init, interrupt_after


def rank_outside():
    init()
    inner = dist.new_group([0])
    if RANK == 0:
        check_usable(inner, 1)
    else:
        try:
            leafpack.all_reduce({"x": torch.ones(1)}, group=inner)
        except ValueError as error:
            assert f"rank {RANK}" in str(error) and "not a member" in str(error)
        else:
            raise AssertionError("this rank is no member")
    check_usable()
    finish()


def no_group():
    try:
        leafpack.all_reduce({"x": torch.ones(1)})
    except ValueError as error:
        assert "init_process_group" in str(error)
    else:
        raise AssertionError("there is no group")
    for group in ("gloo", 3, object()):
        try:
            leafpack.all_reduce({"x": torch.ones(1)}, group=group)
        except TypeError as error:
            assert "group" in str(error)
        else:
            raise AssertionError("that is no group")


def a_second_life():
    """torch.distributed is shut down and set up again, with another store."""
    for _ in range(2):
        init()
        check_usable()
        finish()
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)


def own_group(kind, *arguments):
    if kind == "environment":
        group = leafpack.Group.from_environment(timeout=120)
    else:
        group = leafpack.Group.from_file(arguments[0], RANK, SIZE, timeout=120)
    assert (group.rank, group.size, group.global_rank) == (RANK, SIZE, RANK)
    assert group.backend == "gloo" and group.timeout == 120
    check_usable(group)
    group.shutdown(timeout=10)
    try:
        leafpack.all_reduce({"x": torch.ones(1)}, group=group)
    except RuntimeError:
        pass
    else:
        raise AssertionError("the group was shut down")


def sub_groups():
    """Sub-groups by list and by colour, of an own group and of torch's."""
    init()
    store = dist.distributed_c10d._get_default_store()
    own = leafpack.Group.from_store(store, RANK, SIZE, prefix="own", timeout=120)
    for parent in (own, leafpack.Group.around()):
        members = list(range(0, SIZE, 2))
        group = parent.new_group(members, timeout=60)
        if RANK in members:
            assert (group.rank, group.size, group.timeout) == (members.index(RANK), len(members), 60)
            assert group.global_ranks == members and group
            check_usable(group, len(members))
        else:
            assert not group and group.ranks == tuple(members)
            for use in (lambda: check_usable(group), lambda: group.rank, lambda: group.shutdown()):
                try:
                    use()
                except ValueError as error:
                    assert f"rank {RANK} is not a member" in str(error), error
                else:
                    raise AssertionError("this rank is no member")
        # By its members alone, with other groups in between.
        if RANK > 0:
            last = parent.new_group(range(SIZE - 1, 0, -1), name="without rank 0")
            if RANK == 1:
                check_usable(parent.new_group([1]), 1)
            check_usable(last, SIZE - 1)
        halves = parent.split(RANK % 2, key=-RANK)
        ranks = [r for r in range(SIZE) if r % 2 == RANK % 2]
        assert halves.global_ranks == ranks[::-1] and halves.timeout == parent.timeout
        check_usable(halves, len(ranks))
        alone = parent.split(None if RANK == 0 else 1)
        assert bool(alone) == (RANK != 0)
        if alone:
            check_usable(alone, SIZE - 1)
        for ranks, text in (([0, 0], "stands twice"), ([0, SIZE], f"rank {SIZE}"), ([], "no ranks")):
            try:
                parent.new_group(ranks)
            except ValueError as error:
                assert text in str(error) or RANK != 0, error
            else:
                assert RANK != 0 and ranks == [0, 0]
        check_usable(parent)
    finish()


def from_url(url):
    """Two groups at one URL, used in the other order."""
    groups = [leafpack.Group.from_url(url, RANK, SIZE, timeout=120) for _ in range(2)]
    for group in groups[::-1]:
        assert (group.rank, group.size) == (RANK, SIZE)
        check_usable(group)
    if url == "env://":
        check_usable(leafpack.Group.from_url(timeout=120))


def interrupted_meeting(url):
    """Nobody answers at `url`: Ctrl-C ends the wait, and so does its deadline."""
    interrupt_after(0.2)
    started = time.monotonic()
    try:
        leafpack.Group.from_url(url, 1, 2)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("not interrupted")
    try:
        leafpack.Group.from_url(url, 1, 2, timeout=0.5)
    except leafpack.DeadlineError as error:
        assert url in str(error), error
    else:
        raise AssertionError("nobody was there")
    assert time.monotonic() - started < 60


def refused_split():
    """A colour or key that is no number is told to all, and the next split works."""
    init()
    parent = leafpack.Group.around()
    for bad in (
        {"color": "x"},
        {"color": 2**40},
        {"color": 1.5},
        {"color": 0, "key": "y"},
        {"color": 0, "timeout": -1},
    ):
        odd = RANK == 1
        try:
            parent.split(**(bad if odd else {"color": 0}))
        except leafpack.PeerRefusedError as error:
            assert not odd and "rank 1" in str(error), error
        except (TypeError, ValueError) as error:
            assert odd and next(reversed(bad)) in str(error), error
        else:
            raise AssertionError("split")
        check_usable(parent.split(0))


def killed_at(url):
    """Meets the others and dies, so that nothing is cleaned up."""
    group = leafpack.Group.from_url(url, RANK, SIZE, timeout=120)
    check_usable(group)
    os.kill(os.getpid(), signal.SIGKILL)


def shutdown_with_work(numel, size_of_wait):
    """A group is shut down, or dropped, while a call is in flight that no other rank makes."""
    init()
    parent = leafpack.Group.around()
    groups = [parent.new_group(range(SIZE)) for _ in range(2)]
    for group in groups:
        check_usable(group)
    if RANK == 0:
        trees = [{"x": torch.ones(int(numel))} for _ in groups]
        works = [
            leafpack.all_reduce(t, group=g, async_op=True) for t, g in zip(trees, groups)
        ]
        started = time.monotonic()
        groups[0].shutdown(timeout=float(size_of_wait))
        assert time.monotonic() - started < 60
        for work in works[:1]:
            try:
                work.wait(timeout=60)
            except (leafpack.Error, RuntimeError) as error:
                print(error)
            else:
                raise AssertionError("no other rank made this call")
        del group, groups, works  # the second group goes with its last handle
    else:
        time.sleep(2)
    dist.barrier()
    check_usable(parent)
    finish()


def interrupted_shutdown(what, numel):
    """Ctrl-C while a group that is shut down waits for what only this rank has begun."""
    init()
    parent = leafpack.Group.around()
    group = parent.new_group(range(SIZE))
    check_usable(group)
    tree = {"x": torch.ones(int(numel))}
    if RANK == 0:
        if what == "call":
            work = leafpack.all_reduce(tree, group=group, async_op=True)
        else:
            work = leafpack.isend(tree, 1, group=group)
        started = time.monotonic()
        interrupt_after(0.5)
        try:
            group.shutdown(timeout=100)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the shutdown was not interrupted")
        assert time.monotonic() - started < 50
        try:
            work.wait(timeout=60)
        except leafpack.DeadlineError as error:
            assert error.ranks == (1,), (error, error.ranks)
        else:
            raise AssertionError("no other rank took part")
        try:
            leafpack.barrier(group=group)
        except RuntimeError as error:
            assert "shut down" in str(error), error
        else:
            raise AssertionError("the group is open")
    check_usable(parent)
    finish()


def shutdown_drains(numel):
    """What is in flight on all ranks ends well when the groups are shut down."""
    init()
    group = leafpack.Group.around().new_group(range(SIZE))
    trees = [{"x": torch.ones(int(numel))} for _ in range(20)]
    works = [leafpack.all_reduce(tree, group=group, async_op=True) for tree in trees]
    group.shutdown(timeout=100)
    for work, tree in zip(works, trees):
        work.wait()
        assert tree["x"].unique().tolist() == [SIZE]
    finish()
