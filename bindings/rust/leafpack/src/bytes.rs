//! Collectives and transfers of plain bytes of any size.

use leafpack_sys as sys;

use crate::error::Result;
use crate::group::Group;
use crate::options::{CallOptions, TransferOptions, Waiting};
use crate::start::{array, bytes, fly, result, started, transfer_result, transfer_started};
use crate::transfers::rank_or_any;
use crate::work::{Received, TreeWork};

// SAFETY, of all below: options and arrays live during the call, which copies what it sends later.

/// The bytes of the rank `root` of the job, on every rank. Only the root's `data` is looked at.
pub fn broadcast_bytes(data: &[u8], root: i32, group: &Group, options: &CallOptions<'_>) -> Result<Vec<u8>> {
    result(options, Ok(()), |options, result| unsafe {
        sys::leafpack_broadcast_bytes(bytes(data), data.len(), root, group.as_raw(), options, result)
    })?
    .bytes()
}

/// Starts the same with a copy of the bytes, and returns at once.
///
/// ```
/// # fn main() -> leafpack::Result<()> {
/// # use leafpack::*;
/// # let group = Group::local(1, &GroupOptions::default())?.remove(0);
/// let work = {
///     let message = String::from("begin");
///     broadcast_bytes_async(message.as_bytes(), 0, &group, &CallOptions::default())?
/// };
/// assert_eq!(work.wait()?, b"begin");
/// # Ok(())
/// # }
/// ```
pub fn broadcast_bytes_async(
    data: &[u8],
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TreeWork<'static, Vec<u8>>> {
    let work = started(options, Ok(()), |options, work| unsafe {
        sys::leafpack_broadcast_bytes_async(bytes(data), data.len(), root, group.as_raw(), options, work)
    })?;
    Ok(fly(work, []))
}

/// The bytes of all ranks, by rank of the group.
pub fn all_gather_bytes(data: &[u8], group: &Group, options: &CallOptions<'_>) -> Result<Vec<Vec<u8>>> {
    result(options, Ok(()), |options, result| unsafe {
        sys::leafpack_all_gather_bytes(bytes(data), data.len(), group.as_raw(), options, result)
    })?
    .strings()
}

/// Starts the same with a copy of the bytes, and returns at once.
pub fn all_gather_bytes_async(
    data: &[u8],
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TreeWork<'static, Vec<Vec<u8>>>> {
    let work = started(options, Ok(()), |options, work| unsafe {
        sys::leafpack_all_gather_bytes_async(bytes(data), data.len(), group.as_raw(), options, work)
    })?;
    Ok(fly(work, []))
}

/// As [`all_gather_bytes`] on the rank `root` of the job; the others get nothing.
pub fn gather_bytes(data: &[u8], root: i32, group: &Group, options: &CallOptions<'_>) -> Result<Vec<Vec<u8>>> {
    result(options, Ok(()), |options, result| unsafe {
        sys::leafpack_gather_bytes(bytes(data), data.len(), root, group.as_raw(), options, result)
    })?
    .strings()
}

/// Starts the same with a copy of the bytes, and returns at once.
pub fn gather_bytes_async(
    data: &[u8],
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TreeWork<'static, Vec<Vec<u8>>>> {
    let work = started(options, Ok(()), |options, work| unsafe {
        sys::leafpack_gather_bytes_async(bytes(data), data.len(), root, group.as_raw(), options, work)
    })?;
    Ok(fly(work, []))
}

/// Starts and sizes of parts, as C takes them.
fn parts(data: &[&[u8]]) -> (Vec<*const std::os::raw::c_void>, Vec<usize>) {
    data.iter().map(|part| (bytes(part), part.len())).unzip()
}

/// The root's `data[i]` goes to rank i of the group. Only the root's `data` is looked at.
pub fn scatter_bytes(data: &[&[u8]], root: i32, group: &Group, options: &CallOptions<'_>) -> Result<Vec<u8>> {
    let (starts, sizes) = parts(data);
    result(options, Ok(()), |options, result| unsafe {
        let (starts, sizes) = (array(&starts), array(&sizes));
        sys::leafpack_scatter_bytes(starts, sizes, data.len(), root, group.as_raw(), options, result)
    })?
    .bytes()
}

/// Starts the same with a copy of the bytes, and returns at once.
pub fn scatter_bytes_async(
    data: &[&[u8]],
    root: i32,
    group: &Group,
    options: &CallOptions<'_>,
) -> Result<TreeWork<'static, Vec<u8>>> {
    let (starts, sizes) = parts(data);
    let work = started(options, Ok(()), |options, work| unsafe {
        let (starts, sizes) = (array(&starts), array(&sizes));
        sys::leafpack_scatter_bytes_async(starts, sizes, data.len(), root, group.as_raw(), options, work)
    })?;
    Ok(fly(work, []))
}

/// Sends bytes to a rank of the job; returns when the receiver has them.
pub fn send_bytes(data: &[u8], to: i32, group: &Group, options: &TransferOptions<'_>) -> Result<()> {
    options.with_raw(Waiting::Here, |options| unsafe {
        sys::leafpack_send_bytes(bytes(data), data.len(), to, group.as_raw(), options)
    })
}

/// Starts the same with a copy of the bytes, and returns at once.
pub fn isend_bytes(data: &[u8], to: i32, group: &Group, options: &TransferOptions<'_>) -> Result<TreeWork<'static>> {
    let work = transfer_started(options, |options, work| unsafe {
        sys::leafpack_isend_bytes(bytes(data), data.len(), to, group.as_raw(), options, work)
    })?;
    Ok(fly(work, []))
}

/// Receives bytes from a rank of the job, or, with None, from whoever sends first.
pub fn recv_bytes(from: Option<i32>, group: &Group, options: &TransferOptions<'_>) -> Result<Received<Vec<u8>>> {
    transfer_result(options, |options, result| unsafe {
        sys::leafpack_recv_bytes(rank_or_any(from), group.as_raw(), options, result)
    })?
    .received_bytes()
}

/// Starts the same and returns at once.
pub fn irecv_bytes(
    from: Option<i32>,
    group: &Group,
    options: &TransferOptions<'_>,
) -> Result<TreeWork<'static, Received<Vec<u8>>>> {
    let work = transfer_started(options, |options, work| unsafe {
        sys::leafpack_irecv_bytes(rank_or_any(from), group.as_raw(), options, work)
    })?;
    Ok(fly(work, []))
}
