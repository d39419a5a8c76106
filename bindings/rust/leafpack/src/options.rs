//! Options of calls.

use std::any::Any;
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr;
use std::time::Duration;

use leafpack_sys as sys;

use crate::error::{check, Error, Result};
use crate::key::NestedKey;
use crate::work::CollectiveStats;

/// How values of all ranks become one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ReduceOp {
    #[default]
    Sum,
    Avg,
    Product,
    Min,
    Max,
    Band,
    Bor,
    Bxor,
    /// A sum of each rank's values times its factor.
    PremulSum(f64),
}

/// How leaves are put into messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bucketing {
    #[default]
    Auto,
    PerLeaf,
    /// At most this many bytes each; a larger leaf goes alone.
    MaxBytes(i64),
}

/// What a failure after data began to move leaves behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The error tells which leaves are done.
    #[default]
    Report,
    /// The tree is as it was before.
    Restore,
}

/// Which tensors take part in a reduction.
#[derive(Clone, Copy, Default)]
pub enum LeafFilter<'o> {
    #[default]
    All,
    Floating,
    /// Those whose path, as errors print it, this says yes to; the same on all ranks.
    Chosen(&'o dyn Fn(&str) -> bool),
    /// The same with the path by its components.
    ChosenByKey(&'o dyn Fn(&NestedKey) -> bool),
}

/// When the ranks compare their calls; differs from `Always` only on backends of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckMode {
    /// On every call.
    #[default]
    Always,
    /// A layout that was agreed before is trusted.
    First,
    /// Never.
    Off,
}

/// Options of a collective; `Default` has them all.
#[derive(Clone, Copy, Default)]
pub struct CallOptions<'o> {
    /// Of the whole call, from now; the group's if None.
    pub timeout: Option<Duration>,
    /// Compared between ranks, at most 256 bytes: a mix-up of two calls that look alike is an error.
    pub name: Option<&'o str>,
    pub on_failure: OnFailure,
    pub check: CheckMode,
    /// Of packed bytes on this rank; 64 MiB if None.
    pub max_in_flight_bytes: Option<i64>,
    /// Asked about every 50 ms by a synchronous call while it waits; true gives the call up. Asynchronous
    /// calls have [`TreeWork::cancel`](crate::TreeWork::cancel).
    pub interrupt: Option<&'o dyn Fn() -> bool>,
    /// Gets where the time of a synchronous call went, once it has succeeded. Asynchronous calls have
    /// [`TreeWork::stats`](crate::TreeWork::stats).
    pub stats: Option<&'o Cell<CollectiveStats>>,
}

/// Options of [`all_reduce`](crate::all_reduce) and its relatives.
#[derive(Clone, Copy, Default)]
pub struct AllReduceOptions<'o> {
    pub op: ReduceOp,
    pub bucketing: Bucketing,
    pub leaves: LeafFilter<'o>,
    pub call: CallOptions<'o>,
}

impl AllReduceOptions<'_> {
    /// Defaults but for the op.
    pub fn with_op(op: ReduceOp) -> Self {
        AllReduceOptions { op, ..Default::default() }
    }
}

/// Options of transfers between two ranks.
#[derive(Clone, Copy, Default)]
pub struct TransferOptions<'o> {
    /// Receives take only what was sent with the same one.
    pub tag: i64,
    pub timeout: Option<Duration>,
    /// Compared between the two ranks.
    pub name: Option<&'o str>,
    /// A larger tree is refused by a receive into nothing.
    pub max_bytes: Option<i64>,
    /// As in [`CallOptions`].
    pub interrupt: Option<&'o dyn Fn() -> bool>,
}

pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid_argument(format!("{text:?} holds a zero byte")))
}

/// 0 stands for the default, so that no time at all is refused here.
pub(crate) fn milliseconds(time: Option<Duration>) -> Result<i64> {
    match time {
        None => Ok(0),
        Some(Duration::ZERO) => Err(Error::invalid_argument("a timeout of 0: want more")),
        Some(time) => Ok(time.as_millis().try_into().unwrap_or(i64::MAX).max(1)),
    }
}

#[derive(Clone, Copy)]
enum TakesLeaf<'o> {
    Path(&'o dyn Fn(&str) -> bool),
    Key(&'o dyn Fn(&NestedKey) -> bool),
}

/// Closures that the library calls. A panic must not cross it: the call is given up, then the panic
/// goes on.
#[derive(Default)]
struct Callbacks<'o> {
    interrupt: Option<&'o dyn Fn() -> bool>,
    takes_leaf: Option<TakesLeaf<'o>>,
    panic: Option<Box<dyn Any + Send>>,
}

impl Callbacks<'_> {
    fn guarded(&mut self, otherwise: bool, call: impl FnOnce() -> bool) -> i32 {
        if self.panic.is_some() {
            return otherwise.into();
        }
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(answer) => answer.into(),
            Err(panic) => {
                self.panic = Some(panic);
                otherwise.into()
            }
        }
    }
}

unsafe extern "C" fn ask_interrupt(context: *mut c_void) -> i32 {
    let callbacks = &mut *(context as *mut Callbacks);
    match callbacks.interrupt {
        Some(interrupt) => callbacks.guarded(true, interrupt),
        None => callbacks.panic.is_some().into(),
    }
}

unsafe extern "C" fn ask_takes_leaf(
    context: *mut c_void,
    path_text: *const c_char,
    path: *const sys::leafpack_component,
    depth: usize,
) -> i32 {
    let callbacks = &mut *(context as *mut Callbacks);
    match callbacks.takes_leaf {
        Some(TakesLeaf::Path(takes)) => {
            callbacks.guarded(true, || takes(&CStr::from_ptr(path_text).to_string_lossy()))
        }
        Some(TakesLeaf::Key(takes)) => callbacks.guarded(true, || takes(&NestedKey::from_raw(path, depth))),
        None => 1,
    }
}

/// The closure of a call that the caller waits in, as the library takes it, for the time of `call`.
pub(crate) fn with_interrupt(
    interrupt: Option<&dyn Fn() -> bool>,
    call: impl FnOnce(Option<unsafe extern "C" fn(*mut c_void) -> i32>, *mut c_void) -> *mut sys::leafpack_error,
) -> Result<()> {
    let mut callbacks = Callbacks { interrupt, ..Default::default() };
    let context: *mut Callbacks = &mut callbacks;
    let error = call(interrupt.map(|_| ask_interrupt as _), context.cast());
    finish(callbacks, error)
}

fn finish(callbacks: Callbacks, error: *mut sys::leafpack_error) -> Result<()> {
    let result = check(error);
    if let Some(panic) = callbacks.panic {
        resume_unwind(panic);
    }
    result
}

pub(crate) fn text_or_null(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

/// Whether the thread that makes the call also waits for it, and so may ask closures meanwhile.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Waiting {
    Here,
    Later,
}

impl CallOptions<'_> {
    pub(crate) fn with_raw(
        &self,
        waiting: Waiting,
        call: impl FnOnce(*const sys::leafpack_call_options) -> *mut sys::leafpack_error,
    ) -> Result<()> {
        let reducing = AllReduceOptions { call: *self, ..Default::default() };
        // The first members of both structs are the same.
        reducing.with_raw(waiting, |raw| {
            let raw = unsafe { &*raw };
            call(&sys::leafpack_call_options {
                struct_size: std::mem::size_of::<sys::leafpack_call_options>(),
                timeout_ms: raw.timeout_ms,
                name: raw.name,
                on_failure: raw.on_failure,
                check: raw.check,
                max_in_flight_bytes: raw.max_in_flight_bytes,
                interrupt: raw.interrupt,
                interrupt_context: raw.interrupt_context,
                stats: raw.stats,
            })
        })
    }
}

impl AllReduceOptions<'_> {
    pub(crate) fn with_raw(
        &self,
        waiting: Waiting,
        call: impl FnOnce(*const sys::leafpack_reduce_options) -> *mut sys::leafpack_error,
    ) -> Result<()> {
        let name = self.call.name.map(c_string).transpose()?;
        let mut callbacks = Callbacks {
            interrupt: if waiting == Waiting::Here { self.call.interrupt } else { None },
            ..Default::default()
        };
        let leaves = match self.leaves {
            LeafFilter::All => sys::LEAFPACK_ALL_LEAVES,
            LeafFilter::Floating => sys::LEAFPACK_FLOATING_LEAVES,
            LeafFilter::Chosen(takes) => {
                callbacks.takes_leaf = Some(TakesLeaf::Path(takes));
                sys::LEAFPACK_CHOSEN_LEAVES
            }
            LeafFilter::ChosenByKey(takes) => {
                callbacks.takes_leaf = Some(TakesLeaf::Key(takes));
                sys::LEAFPACK_CHOSEN_LEAVES
            }
        };
        let (op, factor) = match self.op {
            ReduceOp::Sum => (sys::LEAFPACK_SUM, 0.0),
            ReduceOp::Avg => (sys::LEAFPACK_AVG, 0.0),
            ReduceOp::Product => (sys::LEAFPACK_PRODUCT, 0.0),
            ReduceOp::Min => (sys::LEAFPACK_MIN, 0.0),
            ReduceOp::Max => (sys::LEAFPACK_MAX, 0.0),
            ReduceOp::Band => (sys::LEAFPACK_BAND, 0.0),
            ReduceOp::Bor => (sys::LEAFPACK_BOR, 0.0),
            ReduceOp::Bxor => (sys::LEAFPACK_BXOR, 0.0),
            ReduceOp::PremulSum(factor) => (sys::LEAFPACK_PREMUL_SUM, factor),
        };
        let (bucketing, bucket_bytes) = match self.bucketing {
            Bucketing::Auto => (sys::LEAFPACK_AUTO, 0),
            Bucketing::PerLeaf => (sys::LEAFPACK_PER_LEAF, 0),
            Bucketing::MaxBytes(bytes) => (sys::LEAFPACK_MAX_BYTES, bytes),
        };
        let timeout_ms = milliseconds(self.call.timeout)?;
        let asks = callbacks.interrupt.is_some() || (waiting == Waiting::Here && callbacks.takes_leaf.is_some());
        let takes_leaf = callbacks.takes_leaf.is_some();
        let filled = if waiting == Waiting::Here { self.call.stats } else { None };
        let mut stats = CollectiveStats::raw();
        let context: *mut Callbacks = &mut callbacks;
        let error = call(&sys::leafpack_reduce_options {
            struct_size: std::mem::size_of::<sys::leafpack_reduce_options>(),
            timeout_ms,
            name: text_or_null(&name),
            on_failure: match self.call.on_failure {
                OnFailure::Report => sys::LEAFPACK_REPORT,
                OnFailure::Restore => sys::LEAFPACK_RESTORE,
            },
            check: match self.call.check {
                CheckMode::Always => sys::LEAFPACK_ALWAYS,
                CheckMode::First => sys::LEAFPACK_FIRST,
                CheckMode::Off => sys::LEAFPACK_OFF,
            },
            max_in_flight_bytes: self.call.max_in_flight_bytes.unwrap_or(0),
            interrupt: if asks { Some(ask_interrupt) } else { None },
            interrupt_context: context.cast(),
            stats: if filled.is_some() { &mut stats } else { ptr::null_mut() },
            op,
            bucketing,
            factor,
            bucket_bytes,
            leaves,
            reserved: 0,
            takes_leaf: if takes_leaf { Some(ask_takes_leaf) } else { None },
            takes_leaf_context: context.cast(),
        });
        finish(callbacks, error)?;
        if let Some(filled) = filled {
            filled.set(CollectiveStats::from_raw(&stats));
        }
        Ok(())
    }
}

impl TransferOptions<'_> {
    pub(crate) fn with_raw(
        &self,
        waiting: Waiting,
        call: impl FnOnce(*const sys::leafpack_transfer_options) -> *mut sys::leafpack_error,
    ) -> Result<()> {
        let name = self.name.map(c_string).transpose()?;
        let timeout_ms = milliseconds(self.timeout)?;
        let asked = if waiting == Waiting::Here { self.interrupt } else { None };
        with_interrupt(asked, |interrupt, interrupt_context| {
            call(&sys::leafpack_transfer_options {
                struct_size: std::mem::size_of::<sys::leafpack_transfer_options>(),
                tag: self.tag,
                timeout_ms,
                name: text_or_null(&name),
                max_bytes: self.max_bytes.unwrap_or(0),
                interrupt,
                interrupt_context,
            })
        })
    }
}
