//! How calls are made: trees are settled and handed over, results and works taken.

use std::os::raw::c_void;
use std::ptr;

use leafpack_sys as sys;

use crate::error::Result;
use crate::options::{CallOptions, TransferOptions, Waiting};
use crate::tensor_dict::TensorDict;
use crate::work::{FromResult, RawResult, RawWork, TreeWork};

type RawError = *mut sys::leafpack_error;

/// Handles of trees, and the error of a call that one of them is still in.
pub(crate) fn handles<'t, 'a: 't>(
    trees: impl IntoIterator<Item = &'t TensorDict<'a>>,
    writes: bool,
) -> (Vec<*const sys::leafpack_tree>, Result<()>) {
    let mut ready = Ok(());
    let handle = |tree: &TensorDict<'a>| {
        ready = std::mem::replace(&mut ready, Ok(())).and(tree.settle(writes));
        tree.as_raw() as *const _
    };
    let handles = trees.into_iter().map(handle).collect();
    (handles, ready)
}

/// The result of a call that the caller waits in. One that is not `ready` is refused, on all ranks.
pub(crate) fn result(
    options: &CallOptions<'_>,
    ready: Result<()>,
    call: impl FnOnce(*const sys::leafpack_call_options, *mut *mut sys::leafpack_result) -> RawError,
) -> Result<RawResult> {
    let mut result = RawResult::none();
    options.with_raw(Waiting::Here, ready, |options| call(options, result.as_mut()))?;
    Ok(result)
}

/// The work of a call that is waited for later. No closure is asked meanwhile, so that no panic can lose it.
pub(crate) fn started(
    options: &CallOptions<'_>,
    ready: Result<()>,
    call: impl FnOnce(*const sys::leafpack_call_options, *mut *mut sys::leafpack_work) -> RawError,
) -> Result<*mut sys::leafpack_work> {
    let mut work = ptr::null_mut();
    options.with_raw(Waiting::Later, ready, |options| call(options, &mut work))?;
    Ok(work)
}

/// As `result`, of a transfer.
pub(crate) fn transfer_result(
    options: &TransferOptions<'_>,
    call: impl FnOnce(*const sys::leafpack_transfer_options, *mut *mut sys::leafpack_result) -> RawError,
) -> Result<RawResult> {
    let mut result = RawResult::none();
    options.with_raw(Waiting::Here, |options| call(options, result.as_mut()))?;
    Ok(result)
}

/// As `started`, of a transfer.
pub(crate) fn transfer_started(
    options: &TransferOptions<'_>,
    call: impl FnOnce(*const sys::leafpack_transfer_options, *mut *mut sys::leafpack_work) -> RawError,
) -> Result<*mut sys::leafpack_work> {
    let mut work = ptr::null_mut();
    options.with_raw(Waiting::Later, |options| call(options, &mut work))?;
    Ok(work)
}

/// A work over trees, each of which remembers whether it is written.
pub(crate) fn fly<'t, R: FromResult>(
    work: *mut sys::leafpack_work,
    trees: impl IntoIterator<Item = (&'t TensorDict<'static>, bool)>,
) -> TreeWork<'t, R> {
    let work = RawWork::from_raw(work);
    for (tree, writes) in trees {
        tree.add_flight(work.clone(), writes);
    }
    TreeWork::new(work)
}

/// An array as C takes it; NULL stands for none.
pub(crate) fn array<T>(items: &[T]) -> *const T {
    if items.is_empty() {
        ptr::null()
    } else {
        items.as_ptr()
    }
}

pub(crate) fn bytes(data: &[u8]) -> *const c_void {
    array(data).cast()
}
