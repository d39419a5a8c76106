//! Calls in flight, and what they give.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use leafpack_sys as sys;

use crate::error::{check, slice_of, ErrorCode, Result};
use crate::tensor_dict::{made, TensorDict};

/// The library's handle of a call in flight.
#[derive(Debug)]
struct Handle(NonNull<sys::leafpack_work>);

// SAFETY: many threads may use a work at once.
unsafe impl Send for Handle {}
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: our own handle, freed once.
        unsafe { sys::leafpack_work_free(self.0.as_ptr()) }
    }
}

/// A call in flight, which its TreeWork and its trees share.
#[derive(Debug)]
pub struct RawWork {
    /// None once the TreeWork has the result: trees remember the call until their next use, and must not keep
    /// its memory so long.
    handle: RwLock<Option<Handle>>,
    waited_for: AtomicBool,
}

// SAFETY, of all below: the handle lives.
impl RawWork {
    pub(crate) fn from_raw(raw: *mut sys::leafpack_work) -> Arc<RawWork> {
        let raw = NonNull::new(raw).expect("the library gave no work");
        Arc::new(RawWork { handle: RwLock::new(Some(Handle(raw))), waited_for: AtomicBool::new(false) })
    }

    /// Calls a function with the handle; success where it is gone.
    fn with(&self, call: impl FnOnce(*const sys::leafpack_work) -> *mut sys::leafpack_error) -> Result<()> {
        let handle = self.handle.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        handle.as_ref().map_or(Ok(()), |handle| check(call(handle.0.as_ptr())))
    }

    fn let_go(&self) {
        *self.handle.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
    }

    pub(crate) fn wait(&self) -> Result<()> {
        let result = self.with(|raw| unsafe { sys::leafpack_work_wait(raw, sys::LEAFPACK_NO_TIMEOUT.into()) });
        self.waited_for.store(true, Ordering::Release);
        result
    }

    pub(crate) fn was_waited_for(&self) -> bool {
        self.waited_for.load(Ordering::Acquire)
    }

    /// Whether it is over with an error that nobody has had yet. Never blocks.
    pub(crate) fn has_failed_unseen(&self) -> bool {
        !self.was_waited_for() && self.is_done() && self.with(|raw| unsafe { sys::leafpack_work_wait(raw, 0) }).is_err()
    }

    pub(crate) fn is_done(&self) -> bool {
        let mut done = 1;
        self.with(|raw| unsafe { sys::leafpack_work_is_done(raw, &mut done) }).is_ok() && done != 0
    }
}

/// Where the time of a call went, seconds; phases of different messages overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CollectiveStats {
    pub prepare: f64,
    pub agree: f64,
    pub pack: f64,
    pub communicate: f64,
    pub unpack: f64,
    pub total: f64,
    /// Tensors that took part.
    pub leaves: i64,
    /// Leaves that are no tensors: compared only.
    pub skipped: i64,
    /// Bytes of this rank's leaves that took part.
    pub bytes: i64,
    /// 0 when the tree rode with its digest.
    pub messages: i64,
}

impl CollectiveStats {
    /// For the library to fill.
    pub(crate) fn raw() -> sys::leafpack_stats {
        // SAFETY: numbers.
        let mut stats: sys::leafpack_stats = unsafe { std::mem::zeroed() };
        stats.struct_size = std::mem::size_of::<sys::leafpack_stats>();
        stats
    }

    pub(crate) fn from_raw(stats: &sys::leafpack_stats) -> Self {
        CollectiveStats {
            prepare: stats.prepare,
            agree: stats.agree,
            pack: stats.pack,
            communicate: stats.communicate,
            unpack: stats.unpack,
            total: stats.total,
            leaves: stats.leaves,
            skipped: stats.skipped,
            bytes: stats.bytes,
            messages: stats.messages,
        }
    }
}

/// A call in flight, over leaves that are borrowed for `'t`: until the work is waited for, they can be
/// neither read nor written (only read, where the call only sends them), and the work cannot
/// outlive them.
///
/// A work that is dropped is not given up: its call goes on, and the next use of the tree waits for it
/// and returns its error.
///
/// ```
/// # fn main() -> leafpack::Result<()> {
/// # use leafpack::*;
/// # let group = Group::local(1, &GroupOptions::default())?.remove(0);
/// let mut tree = TensorDict::new();
/// tree.set("x", Tensor::from_vec(vec![1.0f32; 8], &[8])?)?;
/// let work = all_reduce_async(&mut tree, &group, &AllReduceOptions::default())?;
/// // ... anything but the tree ...
/// work.wait()?;
/// assert_eq!(tree.slice::<f32>("x")?[0], 1.0);
/// # Ok(())
/// # }
/// ```
///
/// While it is in flight the tree cannot be touched, nor go:
///
/// ```compile_fail,E0502
/// # use leafpack::*;
/// fn read(tree: &mut TensorDict<'static>, group: &Group) -> Result<()> {
///     let work = all_reduce_async(tree, group, &AllReduceOptions::default())?;
///     println!("{}", tree.slice::<f32>("x")?[0]);
///     work.wait()
/// }
/// ```
///
/// ```compile_fail,E0515
/// # use leafpack::*;
/// fn start(group: &Group) -> Result<TreeWork<'_>> {
///     let mut tree = TensorDict::new();
///     all_reduce_async(&mut tree, group, &AllReduceOptions::default())
/// }
/// ```
#[derive(Debug)]
#[must_use = "a call that nobody waits for goes on, and its error comes late"]
pub struct TreeWork<'t, R = ()> {
    work: Arc<RawWork>,
    _leaves: PhantomData<&'t ()>,
    _result: PhantomData<fn() -> R>,
}

impl<'t, R: FromResult> TreeWork<'t, R> {
    pub(crate) fn new(work: Arc<RawWork>) -> Self {
        TreeWork { work, _leaves: PhantomData, _result: PhantomData }
    }

    /// Returns when the call is over, which its own deadline bounds, with what the synchronous call gives.
    pub fn wait(self) -> Result<R> {
        let result = self.work.wait().and_then(|()| R::from_work(&self.work));
        self.work.let_go();
        result
    }

    /// Waits for at most `timeout`; true if the call is over, so that `wait` would not block.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let timeout = timeout.as_millis().try_into().unwrap_or(i64::MAX);
        // The call's own error is kept for `wait`.
        let waited = self.work.with(|raw| unsafe { sys::leafpack_work_wait(raw, timeout) });
        !matches!(waited, Err(error) if error.code() == ErrorCode::DeadlineExceeded) || self.is_done()
    }

    /// Never blocks.
    pub fn is_done(&self) -> bool {
        self.work.is_done()
    }

    /// Asks to give the call up; `wait` then tells what became of it.
    pub fn cancel(&self) -> Result<()> {
        self.work.with(|raw| unsafe { sys::leafpack_work_cancel(raw) })
    }

    /// Where the time went, once the call is over; zeros of a transfer.
    pub fn stats(&self) -> Result<CollectiveStats> {
        let mut stats = CollectiveStats::raw();
        self.work.with(|raw| unsafe { sys::leafpack_work_stats(raw, &mut stats) })?;
        Ok(CollectiveStats::from_raw(&stats))
    }
}

/// The library's result of a call.
pub(crate) struct RawResult(*mut sys::leafpack_result);

impl Drop for RawResult {
    fn drop(&mut self) {
        // SAFETY: our own handle, or NULL.
        unsafe { sys::leafpack_result_free(self.0) }
    }
}

// SAFETY, of all below: the handle lives; what it lends is copied.
impl RawResult {
    pub(crate) fn none() -> RawResult {
        RawResult(ptr::null_mut())
    }

    /// For the library to fill, once.
    pub(crate) fn as_mut(&mut self) -> *mut *mut sys::leafpack_result {
        &mut self.0
    }

    pub(crate) fn trees(&self) -> Result<Vec<TensorDict<'static>>> {
        let mut num_trees = 0;
        check(unsafe { sys::leafpack_result_num_trees(self.0, &mut num_trees) })?;
        // New trees share nothing with another tree, and own their memory.
        (0..num_trees).map(|index| unsafe { made(|raw| sys::leafpack_result_tree(self.0, index, raw)) }).collect()
    }

    pub(crate) fn tree(&self) -> Result<TensorDict<'static>> {
        Ok(self.trees()?.pop().expect("the library gave no tree"))
    }

    pub(crate) fn strings(&self) -> Result<Vec<Vec<u8>>> {
        let mut num_strings = 0;
        check(unsafe { sys::leafpack_result_num_strings(self.0, &mut num_strings) })?;
        let string = |index| {
            let (mut data, mut size) = (ptr::null(), 0);
            check(unsafe { sys::leafpack_result_string(self.0, index, &mut data, &mut size) })?;
            Ok(unsafe { slice_of(data.cast(), size) }.to_vec())
        };
        (0..num_strings).map(string).collect()
    }

    pub(crate) fn bytes(&self) -> Result<Vec<u8>> {
        Ok(self.strings()?.pop().expect("the library gave no bytes"))
    }

    pub(crate) fn source(&self) -> Result<i32> {
        let mut rank = 0;
        check(unsafe { sys::leafpack_result_source(self.0, &mut rank) })?;
        Ok(rank)
    }

    pub(crate) fn received_tree(&self) -> Result<Received<TensorDict<'static>>> {
        Ok(Received { value: self.tree()?, source: self.source()? })
    }

    pub(crate) fn received_bytes(&self) -> Result<Received<Vec<u8>>> {
        Ok(Received { value: self.bytes()?, source: self.source()? })
    }
}

/// What a call gives: nothing, a tree or bytes, those of each rank, or what was received.
pub trait FromResult: Sized {
    #[doc(hidden)]
    fn from_work(work: &RawWork) -> Result<Self>;
}

fn result_of(work: &RawWork) -> Result<RawResult> {
    let mut result = RawResult::none();
    work.with(|raw| unsafe { sys::leafpack_work_result(raw, result.as_mut()) })?;
    Ok(result)
}

impl FromResult for () {
    fn from_work(_: &RawWork) -> Result<()> {
        Ok(())
    }
}

impl FromResult for TensorDict<'static> {
    fn from_work(work: &RawWork) -> Result<Self> {
        result_of(work)?.tree()
    }
}

impl FromResult for Option<TensorDict<'static>> {
    fn from_work(work: &RawWork) -> Result<Self> {
        Ok(result_of(work)?.trees()?.into_iter().next())
    }
}

impl FromResult for Vec<TensorDict<'static>> {
    fn from_work(work: &RawWork) -> Result<Self> {
        result_of(work)?.trees()
    }
}

impl FromResult for Vec<u8> {
    fn from_work(work: &RawWork) -> Result<Self> {
        result_of(work)?.bytes()
    }
}

impl FromResult for Vec<Vec<u8>> {
    fn from_work(work: &RawWork) -> Result<Self> {
        result_of(work)?.strings()
    }
}

/// What came from another rank.
#[derive(Debug)]
pub struct Received<T> {
    pub value: T,
    /// The rank of the job that sent it.
    pub source: i32,
}

impl FromResult for Received<()> {
    fn from_work(work: &RawWork) -> Result<Self> {
        Ok(Received { value: (), source: result_of(work)?.source()? })
    }
}

impl FromResult for Received<TensorDict<'static>> {
    fn from_work(work: &RawWork) -> Result<Self> {
        result_of(work)?.received_tree()
    }
}

impl FromResult for Received<Vec<u8>> {
    fn from_work(work: &RawWork) -> Result<Self> {
        result_of(work)?.received_bytes()
    }
}
