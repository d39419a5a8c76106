//! Transfers of trees between two ranks. They match by sender and tag, in order. A send is over when the
//! receiver has the whole tree, so two ranks that both send first wait for each other: one of them posts
//! its send or its receive ([`isend`], [`irecv`]).

use std::ptr;

use leafpack_sys as sys;

use crate::error::Result;
use crate::group::Group;
use crate::options::{TransferOptions, Waiting};
use crate::start::{fly, transfer_result, transfer_started};
use crate::tensor_dict::TensorDict;
use crate::work::{Received, TreeWork};

// SAFETY, of all below: as in collectives.rs.

/// Sends a tree to a rank of the job; returns when the receiver has it.
pub fn send(tree: &TensorDict<'_>, to: i32, group: &Group, options: &TransferOptions<'_>) -> Result<()> {
    tree.settle(false)?;
    options.with_raw(Waiting::Here, |options| unsafe { sys::leafpack_send(tree.as_raw(), to, group.as_raw(), options) })
}

/// Starts the same and returns at once.
pub fn isend<'t>(
    tree: &'t TensorDict<'static>,
    to: i32,
    group: &Group,
    options: &TransferOptions<'_>,
) -> Result<TreeWork<'t>> {
    tree.settle(false)?;
    let work = transfer_started(options, |options, work| unsafe {
        sys::leafpack_isend(tree.as_raw(), to, group.as_raw(), options, work)
    })?;
    Ok(fly(work, [(tree, false)]))
}

pub(crate) fn rank_or_any(from: Option<i32>) -> i32 {
    from.unwrap_or(sys::LEAFPACK_ANY_RANK)
}

/// Receives a new tree from a rank of the job, or, with None, from whoever sends first.
pub fn recv(from: Option<i32>, group: &Group, options: &TransferOptions<'_>) -> Result<Received<TensorDict<'static>>> {
    transfer_result(options, |options, result| unsafe {
        sys::leafpack_recv(ptr::null(), rank_or_any(from), group.as_raw(), options, result)
    })?
    .received_tree()
}

/// Starts the same and returns at once.
pub fn irecv(
    from: Option<i32>,
    group: &Group,
    options: &TransferOptions<'_>,
) -> Result<TreeWork<'static, Received<TensorDict<'static>>>> {
    let work = transfer_started(options, |options, work| unsafe {
        sys::leafpack_irecv(ptr::null(), rank_or_any(from), group.as_raw(), options, work)
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
    transfer_result(options, |options, result| unsafe {
        sys::leafpack_recv(tree.as_raw(), rank_or_any(from), group.as_raw(), options, result)
    })?
    .source()
}

/// Starts the same and returns at once.
pub fn irecv_into<'t>(
    tree: &'t mut TensorDict<'static>,
    from: Option<i32>,
    group: &Group,
    options: &TransferOptions<'_>,
) -> Result<TreeWork<'t, Received<()>>> {
    tree.settle(true)?;
    let work = transfer_started(options, |options, work| unsafe {
        sys::leafpack_irecv(tree.as_raw(), rank_or_any(from), group.as_raw(), options, work)
    })?;
    Ok(fly(work, [(&*tree, true)]))
}
