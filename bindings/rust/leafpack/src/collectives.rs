//! Collectives on whole trees, and transfers between two ranks.
//!
//! Before a leaf changes, the ranks compare the whole call. If they differ, every rank gets an error with
//! the first path that differs, what each side has, and the ranks; nothing has changed and the group is
//! usable at once. Every wait ends by the call's deadline.
//!
//! Asynchronous calls want trees that own their memory (`TensorDict<'static>`): the memory must stay
//! while the call runs, also when its [`TreeWork`] is forgotten.

use std::os::raw::c_void;
use std::ptr;

use leafpack_sys as sys;

use crate::error::Result;
use crate::group::Group;
use crate::options::{AllReduceOptions, CallOptions, TransferOptions, Waiting};
use crate::tensor_dict::TensorDict;
use crate::work::{RawResult, RawWork, Received, TreeWork};

use Waiting::{Here, Later};

type Handles = Vec<*const sys::leafpack_tree>;

/// Handles of trees that are only read.
fn handles<'t, 'a: 't>(trees: impl IntoIterator<Item = &'t TensorDict<'a>>) -> Result<Handles> {
    trees.into_iter().map(|tree| tree.settle(false).map(|()| tree.as_raw() as *const _)).collect()
}

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
    tree.settle(true)?;
    options.with_raw(Here, |options| unsafe { sys::leafpack_all_reduce(tree.as_raw(), group.as_raw(), options) })
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
    tree.settle(true)?;
    let mut work = ptr::null_mut();
    options.with_raw(Later, |options| unsafe {
        sys::leafpack_all_reduce_async(tree.as_raw(), group.as_raw(), options, &mut work)
    })?;
    Ok(fly(work, [(&*tree, true)]))
}

/// A work over trees, each of which remembers whether it is written.
fn fly<'t, R: crate::FromResult>(
    work: *mut sys::leafpack_work,
    trees: impl IntoIterator<Item = (&'t TensorDict<'static>, bool)>,
) -> TreeWork<'t, R> {
    let work = RawWork::from_raw(work);
    for (tree, writes) in trees {
        tree.add_flight(work.clone(), writes);
    }
    TreeWork::new(work)
}

/// As [`all_reduce`] on the rank `root` of the job; leaves of the others do not change.
pub fn reduce(tree: &mut TensorDict<'_>, root: i32, group: &Group, options: &AllReduceOptions<'_>) -> Result<()> {
    tree.settle(true)?;
    options.with_raw(Here, |options| unsafe { sys::leafpack_reduce(tree.as_raw(), root, group.as_raw(), options) })
}

/// Starts the same and returns at once.
pub fn reduce_async<'t>(
    tree: &'t mut TensorDict<'static>,
    root: i32,
    group: &Group,
    options: &AllReduceOptions<'_>,
) -> Result<TreeWork<'t>> {
    tree.settle(true)?;
    let mut work = ptr::null_mut();
    options.with_raw(Later, |options| unsafe {
        sys::leafpack_reduce_async(tree.as_raw(), root, group.as_raw(), options, &mut work)
    })?;
    Ok(fly(work, [(&*tree, true)]))
}

/// `trees` has one tree for each rank of the group; this rank's own becomes the reduction of those of
/// all ranks, the others do not change.
pub fn reduce_scatter(trees: &mut [TensorDict<'_>], group: &Group, options: &AllReduceOptions<'_>) -> Result<()> {
    for tree in trees.iter() {
        tree.settle(true)?;
    }
    let trees = handles(trees.iter())?;
    options.with_raw(Here, |options| unsafe {
        sys::leafpack_reduce_scatter(trees.as_ptr(), trees.len(), group.as_raw(), options)
    })
}

/// The leaves of the rank `root` of the job go to every rank, into its tree, whose layout must be the root's.
pub fn broadcast(tree: &mut TensorDict<'_>, root: i32, group: &Group, options: &CallOptions<'_>) -> Result<()> {
    tree.settle(true)?;
    options.with_raw(Here, |options| unsafe {
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
    tree.settle(true)?;
    let mut work = ptr::null_mut();
    options.with_raw(Later, |options| unsafe {
        sys::leafpack_broadcast_async(tree.as_raw(), root, group.as_raw(), options, &mut work)
    })?;
    Ok(fly(work, [(&*tree, true)]))
}

/// The part of a [`broadcast`] for a rank, not the root, that has no tree: it gets a new one.
pub fn broadcast_new(root: i32, group: &Group, options: &CallOptions<'_>) -> Result<TensorDict<'static>> {
    result(options, |options, result| unsafe {
        sys::leafpack_broadcast(ptr::null(), root, group.as_raw(), options, result)
    })?
    .tree()
}

fn result(
    options: &CallOptions<'_>,
    call: impl FnOnce(*const sys::leafpack_call_options, *mut *mut sys::leafpack_result) -> *mut sys::leafpack_error,
) -> Result<RawResult> {
    let mut result = ptr::null_mut();
    options.with_raw(Here, |options| call(options, &mut result))?;
    Ok(RawResult::from_raw(result))
}

/// The trees of all ranks, by rank of the group, this rank's own as a copy. Layouts may differ.
pub fn all_gather(tree: &TensorDict<'_>, group: &Group, options: &CallOptions<'_>) -> Result<Vec<TensorDict<'static>>> {
    tree.settle(false)?;
    result(options, |options, result| unsafe {
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
    tree.settle(false)?;
    let mut work = ptr::null_mut();
    options.with_raw(Later, |options| unsafe {
        sys::leafpack_all_gather_async(tree.as_raw(), group.as_raw(), options, &mut work)
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

/// A new tree, joined from those of all ranks; all layouts must be equal.
pub fn all_gather_joined(
    tree: &TensorDict<'_>,
    joining: Joining,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TensorDict<'static>> {
    tree.settle(false)?;
    let joining = match joining {
        Joining::Stack => sys::LEAFPACK_STACK,
        Joining::Concat => sys::LEAFPACK_CONCAT,
    };
    result(options, |options, result| unsafe {
        sys::leafpack_all_gather_joined(tree.as_raw(), joining, ptr::null(), group.as_raw(), options, result)
    })?
    .tree()
}

/// As [`all_gather`] on the rank `root` of the job; the others get no trees.
pub fn gather(
    tree: &TensorDict<'_>,
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<Vec<TensorDict<'static>>> {
    tree.settle(false)?;
    result(options, |options, result| unsafe {
        sys::leafpack_gather(tree.as_raw(), root, group.as_raw(), options, result)
    })?
    .trees()
}

/// The root's `trees[i]` goes to rank i of the group, as a new tree. Only the root gives `trees`.
pub fn scatter(
    trees: &[TensorDict<'_>],
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TensorDict<'static>> {
    let trees = handles(trees)?;
    let first = if trees.is_empty() { ptr::null() } else { trees.as_ptr() };
    result(options, |options, result| unsafe {
        sys::leafpack_scatter(ptr::null(), first, trees.len(), root, group.as_raw(), options, result)
    })?
    .tree()
}

/// `trees[i]` goes to rank i of the group; gives one new tree from each, by rank.
pub fn all_to_all(
    trees: &[TensorDict<'_>],
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<Vec<TensorDict<'static>>> {
    let trees = handles(trees)?;
    result(options, |options, result| unsafe {
        sys::leafpack_all_to_all(trees.as_ptr(), trees.len(), group.as_raw(), options, result)
    })?
    .trees()
}

/// Returns once every rank of the group has called it.
pub fn barrier(group: &Group, options: &CallOptions<'_>) -> Result<()> {
    options.with_raw(Here, |options| unsafe { sys::leafpack_barrier(group.as_raw(), options) })
}

/// The bytes of the rank `root` of the job, on every rank. Only the root's `data` is looked at.
pub fn broadcast_bytes(data: &[u8], root: i32, group: &Group, options: &CallOptions<'_>) -> Result<Vec<u8>> {
    let strings = result(options, |options, result| unsafe {
        sys::leafpack_broadcast_bytes(bytes(data), data.len(), root, group.as_raw(), options, result)
    })?
    .strings()?;
    Ok(strings.into_iter().next().expect("the library gave no bytes"))
}

/// The bytes of all ranks, by rank of the group.
pub fn all_gather_bytes(data: &[u8], group: &Group, options: &CallOptions<'_>) -> Result<Vec<Vec<u8>>> {
    result(options, |options, result| unsafe {
        sys::leafpack_all_gather_bytes(bytes(data), data.len(), group.as_raw(), options, result)
    })?
    .strings()
}

fn bytes(data: &[u8]) -> *const c_void {
    data.as_ptr().cast()
}

/// Sends a tree to a rank of the job; returns when the receiver has it.
pub fn send(tree: &TensorDict<'_>, to: i32, group: &Group, options: &TransferOptions<'_>) -> Result<()> {
    tree.settle(false)?;
    options.with_raw(Here, |options| unsafe { sys::leafpack_send(tree.as_raw(), to, group.as_raw(), options) })
}

/// Starts the same and returns at once.
pub fn isend<'t>(
    tree: &'t TensorDict<'static>,
    to: i32,
    group: &Group,
    options: &TransferOptions<'_>,
) -> Result<TreeWork<'t>> {
    tree.settle(false)?;
    let mut work = ptr::null_mut();
    options.with_raw(Later, |options| unsafe {
        sys::leafpack_isend(tree.as_raw(), to, group.as_raw(), options, &mut work)
    })?;
    Ok(fly(work, [(tree, false)]))
}

fn rank_or_any(from: Option<i32>) -> i32 {
    from.unwrap_or(sys::LEAFPACK_ANY_RANK)
}

/// Receives a new tree from a rank of the job, or, with None, from whoever sends first.
pub fn recv(
    from: Option<i32>,
    group: &Group,
    options: &TransferOptions<'_>,
) -> Result<Received<TensorDict<'static>>> {
    let mut result = ptr::null_mut();
    options.with_raw(Here, |options| unsafe {
        sys::leafpack_recv(ptr::null(), rank_or_any(from), group.as_raw(), options, &mut result)
    })?;
    Received::from_result(&RawResult::from_raw(result))
}

/// Starts the same and returns at once.
pub fn irecv(
    from: Option<i32>,
    group: &Group,
    options: &TransferOptions<'_>,
) -> Result<TreeWork<'static, Received<TensorDict<'static>>>> {
    let mut work = ptr::null_mut();
    options.with_raw(Later, |options| unsafe {
        sys::leafpack_irecv(ptr::null(), rank_or_any(from), group.as_raw(), options, &mut work)
    })?;
    Ok(fly(work, []))
}

/// Receives into a tree whose layout is the sender's; gives the rank that it came from.
pub fn recv_into(
    tree: &mut TensorDict<'_>,
    from: Option<i32>,
    group: &Group,
    options: &TransferOptions<'_>,
) -> Result<i32> {
    tree.settle(true)?;
    let mut result = ptr::null_mut();
    options.with_raw(Here, |options| unsafe {
        sys::leafpack_recv(tree.as_raw(), rank_or_any(from), group.as_raw(), options, &mut result)
    })?;
    RawResult::from_raw(result).source()
}

/// Starts the same and returns at once.
pub fn irecv_into<'t>(
    tree: &'t mut TensorDict<'static>,
    from: Option<i32>,
    group: &Group,
    options: &TransferOptions<'_>,
) -> Result<TreeWork<'t>> {
    tree.settle(true)?;
    let mut work = ptr::null_mut();
    options.with_raw(Later, |options| unsafe {
        sys::leafpack_irecv(tree.as_raw(), rank_or_any(from), group.as_raw(), options, &mut work)
    })?;
    Ok(fly(work, [(&*tree, true)]))
}
