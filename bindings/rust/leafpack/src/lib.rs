//! leafpack keeps trees of tensors in step across processes: one call reduces every leaf of a tree in
//! place over all ranks of a job, with few large messages in place of many small ones. This crate is
//! the safe face of the C interface; `docs/` of leafpack is the manual.
//!
//! ```
//! # fn main() -> leafpack::Result<()> {
//! use leafpack::{all_reduce, AllReduceOptions, Group, GroupOptions, ReduceOp, Tensor, TensorDict};
//!
//! // As a launcher sets RANK and its neighbours: Group::from_environment(&GroupOptions::default())?
//! let group = Group::local(1, &GroupOptions::default())?.remove(0);
//!
//! let mut grads = TensorDict::new();
//! grads.set(["encoder", "weight"], Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], &[2, 2])?)?;
//! grads.set(["encoder", "bias"], Tensor::from_vec(vec![0.5f32, 0.5], &[2])?)?;
//! all_reduce(&mut grads, &group, &AllReduceOptions::with_op(ReduceOp::Avg))?;
//! assert_eq!(grads.slice::<f32>(["encoder", "weight"])?, [1.0, 2.0, 3.0, 4.0]);
//! # Ok(())
//! # }
//! ```
//!
//! # What the types promise
//!
//! - A [`TensorDict`] owns its tensors, and leaves are read and written through borrows of it. A call
//!   that writes leaves takes the tree by `&mut`; a call in flight ([`TreeWork`]) keeps that borrow.
//! - [`TensorDict`], [`Tensor`], [`TreeWork`], [`Layout`], [`Store`] and [`Error`] are `Send` and `Sync`. A [`Group`]
//!   is `Send` only: calls on one group come from one thread at a time.
//! - Every error is a [`Result`] with code, kind, message, path and ranks; the message is the same as in
//!   the other languages of a job. A panic of a closure comes out of the call that it was given to.
//!
//! ```compile_fail,E0277
//! fn shared<T: Sync>() {}
//! shared::<leafpack::Group>();
//! ```

mod bytes;
mod collectives;
mod dlpack;
mod dtype;
mod error;
mod group;
mod key;
mod log;
mod non_tensor;
mod options;
mod start;
mod store;
mod tensor;
mod tensor_dict;
mod transfers;
mod work;

pub use bytes::{
    all_gather_bytes, all_gather_bytes_async, broadcast_bytes, broadcast_bytes_async, gather_bytes, gather_bytes_async,
    irecv_bytes, isend_bytes, recv_bytes, scatter_bytes, scatter_bytes_async, send_bytes,
};
pub use collectives::*;
pub use dlpack::{DlPack, DlPackVersioned};
pub use dtype::{DType, Element, Number, BF16, F16};
pub use error::{Error, ErrorCode, ErrorKind, Result};
pub use group::{Group, GroupOptions};
pub use key::{KeyComponent, NestedKey};
pub use log::{set_log, LogMessage, Severity};
pub use non_tensor::NonTensor;
pub use options::{
    AllReduceOptions, Bucketing, CallOptions, CheckMode, LeafFilter, OnFailure, ReduceOp, TransferOptions,
};
pub use store::Store;
pub use tensor::{Device, Tensor, TensorKind, TensorMut, TensorRef};
pub use tensor_dict::{Layout, Leaf, Leaves, LeavesMut, TensorDict, TreeRef};
pub use transfers::{irecv, irecv_into, isend, recv, recv_into, send};
pub use work::{CollectiveStats, FromResult, Received, TreeWork};

/// The version of the library that is loaded, "0.1.0".
pub fn version() -> String {
    // SAFETY: the text lives for ever.
    unsafe { error::text_of(leafpack_sys::leafpack_version()) }
}

/// The same as one number: major * 10000 + minor * 100 + patch.
pub fn version_number() -> i32 {
    // SAFETY: no arguments.
    unsafe { leafpack_sys::leafpack_version_number() }
}

/// Of the C interface of the library that is loaded. This crate was written for [`ABI_VERSION`]; with another one it
/// makes nothing, but panics.
pub fn abi_version() -> i32 {
    // SAFETY: no arguments.
    unsafe { leafpack_sys::leafpack_abi_version() }
}

/// Of the C interface that this crate was written for.
pub const ABI_VERSION: i32 = leafpack_sys::LEAFPACK_ABI_VERSION;

/// Objects of the C library that are not freed yet, those that this crate holds among them: for tests that
/// look for leaks.
pub fn live_handles() -> i64 {
    // SAFETY: no arguments.
    unsafe { leafpack_sys::leafpack_live_handles() }
}

/// The torch that the library was built with, "2.13.0".
pub fn torch_version() -> String {
    // SAFETY: the text lives for ever.
    unsafe { error::text_of(leafpack_sys::leafpack_torch_version()) }
}
