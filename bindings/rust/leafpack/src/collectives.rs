//! Collectives on whole trees.
//!
//! Before a leaf changes, the ranks compare the whole call. If they differ, every rank gets an error with
//! the first path that differs, what each side has, and the ranks; nothing has changed and the group is
//! usable at once. Every wait ends by the call's deadline.
//!
//! Asynchronous calls want trees that own their memory (`TensorDict<'static>`): the memory must stay
//! while the call runs, also when its [`TreeWork`] is forgotten.

use std::ptr;

use leafpack_sys as sys;

use crate::error::Result;
use crate::group::Group;
use crate::options::{AllReduceOptions, CallOptions, Waiting};
use crate::start::{array, fly, handles, result, started};
use crate::tensor_dict::TensorDict;
use crate::work::TreeWork;

use Waiting::{Here, Later};

// SAFETY, of all below: handles, options and arrays live during the call; trees that a call writes are
// borrowed mutably, and those that it reads are borrowed, for as long as it runs: see `TensorDict::settle`.

/// Every tensor becomes the reduction of those of all ranks, in place, with equal bits on all ranks.
///
/// ```
/// # fn main() -> leafpack::Result<()> {
/// use leafpack::{all_reduce, AllReduceOptions, Group, GroupOptions, ReduceOp, Tensor, TensorDict};
/// # let group = Group::local(1, &GroupOptions::default())?.remove(0);
/// let mut gradients = vec![1.0f32, 2.0, 3.0];
/// let mut tree = TensorDict::new();
/// tree.set("layer", Tensor::from_slice(&mut gradients, &[3])?)?;
/// all_reduce(&mut tree, &group, &AllReduceOptions::with_op(ReduceOp::Avg))?;
/// # Ok(())
/// # }
/// ```
pub fn all_reduce(tree: &mut TensorDict<'_>, group: &Group, options: &AllReduceOptions<'_>) -> Result<()> {
    let ready = tree.settle(true);
    options.with_raw(Here, ready, [&*tree], |options| unsafe {
        sys::leafpack_all_reduce(tree.as_raw(), group.as_raw(), options)
    })
}

/// Starts the same and returns at once.
///
/// Memory that is only borrowed could be gone before the call is over, so trees of it are refused:
///
/// ```compile_fail,E0597
/// # use leafpack::*;
/// # fn f(group: &Group) -> Result<()> {
/// let mut values = vec![1.0f32; 4];
/// let mut tree = TensorDict::new();
/// tree.set("x", Tensor::from_slice(&mut values, &[4])?)?;
/// all_reduce_async(&mut tree, group, &AllReduceOptions::default())?.wait()
/// # }
/// ```
pub fn all_reduce_async<'t>(
    tree: &'t mut TensorDict<'static>,
    group: &Group,
    options: &AllReduceOptions<'_>,
) -> Result<TreeWork<'t>> {
    let ready = tree.settle(true);
    let mut work = ptr::null_mut();
    options.with_raw(Later, ready, [&*tree], |options| unsafe {
        sys::leafpack_all_reduce_async(tree.as_raw(), group.as_raw(), options, &mut work)
    })?;
    Ok(fly(work, [(&*tree, true)]))
}

/// As [`all_reduce`] on the rank `root` of the job; leaves of the others do not change.
pub fn reduce(tree: &mut TensorDict<'_>, root: i32, group: &Group, options: &AllReduceOptions<'_>) -> Result<()> {
    let ready = tree.settle(true);
    options.with_raw(Here, ready, [&*tree], |options| unsafe {
        sys::leafpack_reduce(tree.as_raw(), root, group.as_raw(), options)
    })
}

/// Starts the same and returns at once.
pub fn reduce_async<'t>(
    tree: &'t mut TensorDict<'static>,
    root: i32,
    group: &Group,
    options: &AllReduceOptions<'_>,
) -> Result<TreeWork<'t>> {
    let ready = tree.settle(true);
    let mut work = ptr::null_mut();
    options.with_raw(Later, ready, [&*tree], |options| unsafe {
        sys::leafpack_reduce_async(tree.as_raw(), root, group.as_raw(), options, &mut work)
    })?;
    Ok(fly(work, [(&*tree, true)]))
}

/// `trees` has one tree for each rank of the group; this rank's own becomes the reduction of those of
/// all ranks, the others do not change.
pub fn reduce_scatter(trees: &mut [TensorDict<'_>], group: &Group, options: &AllReduceOptions<'_>) -> Result<()> {
    let (raw, ready) = handles(trees.iter(), true);
    options.with_raw(Here, ready, trees.iter(), |options| unsafe {
        sys::leafpack_reduce_scatter(array(&raw), raw.len(), group.as_raw(), options)
    })
}

/// Starts the same and returns at once.
pub fn reduce_scatter_async<'t>(
    trees: &'t mut [TensorDict<'static>],
    group: &Group,
    options: &AllReduceOptions<'_>,
) -> Result<TreeWork<'t>> {
    let (raw, ready) = handles(trees.iter(), true);
    let mut work = ptr::null_mut();
    options.with_raw(Later, ready, trees.iter(), |options| unsafe {
        sys::leafpack_reduce_scatter_async(array(&raw), raw.len(), group.as_raw(), options, &mut work)
    })?;
    Ok(fly(work, trees.iter().map(|tree| (tree, true))))
}

/// The leaves of the rank `root` of the job go to every rank, into its tree, whose layout must be the root's.
pub fn broadcast(tree: &mut TensorDict<'_>, root: i32, group: &Group, options: &CallOptions<'_>) -> Result<()> {
    let ready = tree.settle(true);
    options.with_raw(Here, ready, |options| unsafe {
        sys::leafpack_broadcast(tree.as_raw(), root, group.as_raw(), options, ptr::null_mut())
    })
}

/// Starts the same and returns at once.
pub fn broadcast_async<'t>(
    tree: &'t mut TensorDict<'static>,
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TreeWork<'t>> {
    let ready = tree.settle(true);
    let work = started(options, ready, |options, work| unsafe {
        sys::leafpack_broadcast_async(tree.as_raw(), root, group.as_raw(), options, work)
    })?;
    Ok(fly(work, [(&*tree, true)]))
}

/// The part of a [`broadcast`] for a rank, not the root, that has no tree: it gets a new one.
pub fn broadcast_new(root: i32, group: &Group, options: &CallOptions<'_>) -> Result<TensorDict<'static>> {
    result(options, Ok(()), |options, result| unsafe {
        sys::leafpack_broadcast(ptr::null(), root, group.as_raw(), options, result)
    })?
    .tree()
}

/// Starts the same and returns at once.
pub fn broadcast_new_async(
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TreeWork<'static, TensorDict<'static>>> {
    let work = started(options, Ok(()), |options, work| unsafe {
        sys::leafpack_broadcast_async(ptr::null(), root, group.as_raw(), options, work)
    })?;
    Ok(fly(work, []))
}

/// The trees of all ranks, by rank of the group, this rank's own as a copy. Layouts may differ.
pub fn all_gather(tree: &TensorDict<'_>, group: &Group, options: &CallOptions<'_>) -> Result<Vec<TensorDict<'static>>> {
    let ready = tree.settle(false);
    result(options, ready, |options, result| unsafe {
        sys::leafpack_all_gather(tree.as_raw(), group.as_raw(), options, result)
    })?
    .trees()
}

/// Starts the same and returns at once.
pub fn all_gather_async<'t>(
    tree: &'t TensorDict<'static>,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TreeWork<'t, Vec<TensorDict<'static>>>> {
    let ready = tree.settle(false);
    let work = started(options, ready, |options, work| unsafe {
        sys::leafpack_all_gather_async(tree.as_raw(), group.as_raw(), options, work)
    })?;
    Ok(fly(work, [(tree, false)]))
}

/// How trees of one layout become one tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    /// A new first dimension.
    Stack,
    /// Along the first dimension.
    Concat,
}

impl Joining {
    fn as_raw(self) -> i32 {
        match self {
            Joining::Stack => sys::LEAFPACK_STACK,
            Joining::Concat => sys::LEAFPACK_CONCAT,
        }
    }
}

/// A new tree, joined from those of all ranks; all layouts must be equal.
pub fn all_gather_joined(
    tree: &TensorDict<'_>,
    joining: Joining,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TensorDict<'static>> {
    let ready = tree.settle(false);
    result(options, ready, |options, result| unsafe {
        sys::leafpack_all_gather_joined(tree.as_raw(), joining.as_raw(), ptr::null(), group.as_raw(), options, result)
    })?
    .tree()
}

/// Starts the same and returns at once.
pub fn all_gather_joined_async<'t>(
    tree: &'t TensorDict<'static>,
    joining: Joining,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TreeWork<'t, TensorDict<'static>>> {
    let ready = tree.settle(false);
    let work = started(options, ready, |options, work| unsafe {
        let (tree, joining) = (tree.as_raw(), joining.as_raw());
        sys::leafpack_all_gather_joined_async(tree, joining, ptr::null(), group.as_raw(), options, work)
    })?;
    Ok(fly(work, [(tree, false)]))
}

/// As [`all_gather_joined`] into a tree that is there, of the joined layout.
pub fn all_gather_joined_into(
    tree: &TensorDict<'_>,
    joining: Joining,
    into: &mut TensorDict<'_>,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<()> {
    let ready = tree.settle(false).and_then(|()| into.settle(true));
    options.with_raw(Here, ready, |options| unsafe {
        let (tree, joining, result) = (tree.as_raw(), joining.as_raw(), ptr::null_mut());
        sys::leafpack_all_gather_joined(tree, joining, into.as_raw(), group.as_raw(), options, result)
    })
}

/// Starts the same and returns at once.
pub fn all_gather_joined_into_async<'t>(
    tree: &'t TensorDict<'static>,
    joining: Joining,
    into: &'t mut TensorDict<'static>,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TreeWork<'t>> {
    let ready = tree.settle(false).and_then(|()| into.settle(true));
    let work = started(options, ready, |options, work| unsafe {
        let (tree, joining) = (tree.as_raw(), joining.as_raw());
        sys::leafpack_all_gather_joined_async(tree, joining, into.as_raw(), group.as_raw(), options, work)
    })?;
    Ok(fly(work, [(tree, false), (&*into, true)]))
}

/// As [`all_gather`] on the rank `root` of the job; the others get no trees.
pub fn gather(
    tree: &TensorDict<'_>,
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<Vec<TensorDict<'static>>> {
    let ready = tree.settle(false);
    result(options, ready, |options, result| unsafe {
        sys::leafpack_gather(tree.as_raw(), root, group.as_raw(), options, result)
    })?
    .trees()
}

/// Starts the same and returns at once.
pub fn gather_async<'t>(
    tree: &'t TensorDict<'static>,
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TreeWork<'t, Vec<TensorDict<'static>>>> {
    let ready = tree.settle(false);
    let work = started(options, ready, |options, work| unsafe {
        sys::leafpack_gather_async(tree.as_raw(), root, group.as_raw(), options, work)
    })?;
    Ok(fly(work, [(tree, false)]))
}

/// A new tree on the rank `root` of the job, stacked from those of all ranks; the others get None. All
/// layouts must be equal.
pub fn gather_and_stack(
    tree: &TensorDict<'_>,
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<Option<TensorDict<'static>>> {
    let ready = tree.settle(false);
    let trees = result(options, ready, |options, result| unsafe {
        sys::leafpack_gather_and_stack(tree.as_raw(), root, group.as_raw(), options, result)
    })?
    .trees()?;
    Ok(trees.into_iter().next())
}

/// Starts the same and returns at once.
pub fn gather_and_stack_async<'t>(
    tree: &'t TensorDict<'static>,
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TreeWork<'t, Option<TensorDict<'static>>>> {
    let ready = tree.settle(false);
    let work = started(options, ready, |options, work| unsafe {
        sys::leafpack_gather_and_stack_async(tree.as_raw(), root, group.as_raw(), options, work)
    })?;
    Ok(fly(work, [(tree, false)]))
}

/// The root's `trees[i]` goes to rank i of the group, as a new tree. Only the root gives `trees`.
pub fn scatter(
    trees: &[TensorDict<'_>],
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TensorDict<'static>> {
    let (trees, ready) = handles(trees, false);
    result(options, ready, |options, result| unsafe {
        sys::leafpack_scatter(ptr::null(), array(&trees), trees.len(), root, group.as_raw(), options, result)
    })?
    .tree()
}

/// Starts the same and returns at once.
pub fn scatter_async<'t>(
    trees: &'t [TensorDict<'static>],
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TreeWork<'t, TensorDict<'static>>> {
    let (raw, ready) = handles(trees, false);
    let work = started(options, ready, |options, work| unsafe {
        sys::leafpack_scatter_async(ptr::null(), array(&raw), raw.len(), root, group.as_raw(), options, work)
    })?;
    Ok(fly(work, trees.iter().map(|tree| (tree, false))))
}

/// As [`scatter`] into a tree that is there, whose layout is that of this rank's part.
pub fn scatter_into(
    tree: &mut TensorDict<'_>,
    trees: &[TensorDict<'_>],
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<()> {
    let (trees, read) = handles(trees, false);
    let ready = tree.settle(true).and(read);
    options.with_raw(Here, ready, |options| unsafe {
        let (tree, result) = (tree.as_raw(), ptr::null_mut());
        sys::leafpack_scatter(tree, array(&trees), trees.len(), root, group.as_raw(), options, result)
    })
}

/// Starts the same and returns at once.
pub fn scatter_into_async<'t>(
    tree: &'t mut TensorDict<'static>,
    trees: &'t [TensorDict<'static>],
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TreeWork<'t>> {
    let (raw, read) = handles(trees, false);
    let ready = tree.settle(true).and(read);
    let work = started(options, ready, |options, work| unsafe {
        sys::leafpack_scatter_async(tree.as_raw(), array(&raw), raw.len(), root, group.as_raw(), options, work)
    })?;
    let sent = trees.iter().map(|tree| (tree, false));
    Ok(fly(work, sent.chain([(&*tree, true)])))
}

/// `trees[i]` goes to rank i of the group; gives one new tree from each, by rank.
pub fn all_to_all(
    trees: &[TensorDict<'_>],
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<Vec<TensorDict<'static>>> {
    let (trees, ready) = handles(trees, false);
    result(options, ready, |options, result| unsafe {
        sys::leafpack_all_to_all(array(&trees), trees.len(), group.as_raw(), options, result)
    })?
    .trees()
}

/// Starts the same and returns at once.
pub fn all_to_all_async<'t>(
    trees: &'t [TensorDict<'static>],
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TreeWork<'t, Vec<TensorDict<'static>>>> {
    let (raw, ready) = handles(trees, false);
    let work = started(options, ready, |options, work| unsafe {
        sys::leafpack_all_to_all_async(array(&raw), raw.len(), group.as_raw(), options, work)
    })?;
    Ok(fly(work, trees.iter().map(|tree| (tree, false))))
}

/// Returns once every rank of the group has called it.
pub fn barrier(group: &Group, options: &CallOptions<'_>) -> Result<()> {
    options.with_raw(Here, Ok(()), |options| unsafe { sys::leafpack_barrier(group.as_raw(), options) })
}
