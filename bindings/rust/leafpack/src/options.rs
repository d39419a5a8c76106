//! Options of calls.

use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::CString;
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr;
use std::time::Duration;

use leafpack_sys as sys;

use crate::error::{check, Error, Result};
use crate::key::NestedKey;
use crate::tensor_dict::TensorDict;
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
///
/// Closures are asked before the call begins, once about each path. A panic of one refuses the call on all ranks, as an
/// argument that is wrong does: no leaf has changed and nothing is in flight when it goes on.
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

/// A reason for all ranks to read.
pub(crate) fn refusal_of(text: &str) -> CString {
    CString::new(text.replace('\0', "\\0")).expect("no zero byte is left")
}

/// What stops a call before it is made. The call is refused in its place in the order of the group.
enum Stop {
    /// Of an earlier call; this one gives it.
    Earlier(Error),
    /// Of arguments; this call gives the library's error of the same text.
    Argument(Error),
    /// Goes on once the other ranks know.
    Panic(Box<dyn Any + Send>),
}

impl Stop {
    fn refusal(&self) -> CString {
        match self {
            Stop::Earlier(error) | Stop::Argument(error) => refusal_of(error.message()),
            Stop::Panic(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
                refusal_of(&format!("the filter of leaves panicked: {text}"))
            }
        }
    }
}

pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid_argument(format!("{text:?} holds a zero byte")))
}

/// The same of a call, in which 0 stands for the default: no time at all is one that the library refuses, on all ranks.
pub(crate) fn milliseconds_of_call(time: Option<Duration>) -> i64 {
    milliseconds(time).unwrap_or(-1)
}

/// 0 stands for the default, so that no time at all is refused here.
pub(crate) fn milliseconds(time: Option<Duration>) -> Result<i64> {
    match time {
        None => Ok(0),
        Some(Duration::ZERO) => Err(Error::invalid_argument("a timeout of 0: want more")),
        Some(time) => Ok(time.as_millis().try_into().unwrap_or(i64::MAX).max(1)),
    }
}

/// The answers of a filter's closure. It is asked here and not by the library, into which a panic must not go: the
/// library would go on with the leaves that it has.
type Chosen = HashMap<NestedKey, bool>;

fn chosen<'t, 'a: 't>(
    leaves: LeafFilter<'_>,
    trees: impl IntoIterator<Item = &'t TensorDict<'a>>,
) -> Result<Option<Chosen>> {
    if matches!(leaves, LeafFilter::All | LeafFilter::Floating) {
        return Ok(None);
    }
    let mut chosen = Chosen::new();
    for tree in trees {
        for leaf in tree.leaves()?.filter(|leaf| leaf.is_tensor()) {
            let key = leaf.key()?;
            if !chosen.contains_key(&key) {
                let answer = match leaves {
                    LeafFilter::Chosen(takes) => takes(leaf.path()),
                    LeafFilter::ChosenByKey(takes) => takes(&key),
                    LeafFilter::All | LeafFilter::Floating => true,
                };
                chosen.insert(key, answer);
            }
        }
    }
    Ok(Some(chosen))
}

unsafe extern "C" fn look_up_leaf(
    context: *mut c_void,
    _path_text: *const c_char,
    path: *const sys::leafpack_component,
    depth: usize,
) -> i32 {
    // The library goes through the leaves that TensorDict::leaves gave.
    (*(context as *const Chosen)).get(&NestedKey::from_raw(path, depth)).map_or(0, |answer| (*answer).into())
}

/// A closure that the library calls. A panic must not cross it: the call is given up, then the panic
/// goes on.
struct Interrupt<'o> {
    asked: Option<&'o dyn Fn() -> bool>,
    panic: Option<Box<dyn Any + Send>>,
}

unsafe extern "C" fn ask_interrupt(context: *mut c_void) -> i32 {
    let interrupt = &mut *(context as *mut Interrupt);
    match interrupt.asked {
        Some(asked) if interrupt.panic.is_none() => match catch_unwind(AssertUnwindSafe(asked)) {
            Ok(answer) => answer.into(),
            Err(panic) => {
                interrupt.panic = Some(panic);
                1
            }
        },
        _ => interrupt.panic.is_some().into(),
    }
}

/// The closure of a call that the caller waits in, as the library takes it, for the time of `call`. Its panic goes on from
/// here, so what `call` makes must be owned by then.
pub(crate) fn with_interrupt(
    interrupt: Option<&dyn Fn() -> bool>,
    call: impl FnOnce(Option<unsafe extern "C" fn(*mut c_void) -> i32>, *mut c_void) -> *mut sys::leafpack_error,
) -> Result<()> {
    let mut asked = Interrupt { asked: interrupt, panic: None };
    let context: *mut Interrupt = &mut asked;
    let result = check(call(interrupt.map(|_| ask_interrupt as _), context.cast()));
    if let Some(panic) = asked.panic {
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
    /// Makes a call, or, where it is not `ready`, refuses it.
    pub(crate) fn with_raw(
        &self,
        waiting: Waiting,
        ready: Result<()>,
        call: impl FnOnce(*const sys::leafpack_call_options) -> *mut sys::leafpack_error,
    ) -> Result<()> {
        let reducing = AllReduceOptions { call: *self, ..Default::default() };
        // The first members of both structs are the same.
        reducing.with_raw(waiting, ready, [], |raw| {
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
                refusal: raw.refusal,
            })
        })
    }
}

impl AllReduceOptions<'_> {
    /// Makes a call, or, where it is not `ready`, refuses it. `trees` are those whose leaves the filter is asked about.
    pub(crate) fn with_raw<'t, 'a: 't>(
        &self,
        waiting: Waiting,
        ready: Result<()>,
        trees: impl IntoIterator<Item = &'t TensorDict<'a>>,
        call: impl FnOnce(*const sys::leafpack_reduce_options) -> *mut sys::leafpack_error,
    ) -> Result<()> {
        let leaves = match self.leaves {
            LeafFilter::All => sys::LEAFPACK_ALL_LEAVES,
            LeafFilter::Floating => sys::LEAFPACK_FLOATING_LEAVES,
            LeafFilter::Chosen(_) | LeafFilter::ChosenByKey(_) => sys::LEAFPACK_CHOSEN_LEAVES,
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
        let read = || Ok((self.call.name.map(c_string).transpose()?, chosen(self.leaves, trees)?));
        let given = match ready.map(|()| catch_unwind(AssertUnwindSafe(read))) {
            Ok(Ok(Ok(given))) => Ok(given),
            Ok(Ok(Err(error))) => Err(Stop::Argument(error)),
            Ok(Err(panic)) => Err(Stop::Panic(panic)),
            Err(error) => Err(Stop::Earlier(error)),
        };
        let refusal = given.as_ref().err().map(Stop::refusal);
        let nothing = (None, None);
        let (name, chosen) = given.as_ref().unwrap_or(&nothing);
        let (asked, filled) =
            if waiting == Waiting::Here { (self.call.interrupt, self.call.stats) } else { (None, None) };
        let asked = if refusal.is_none() { asked } else { None };
        let mut stats = CollectiveStats::raw();
        let result = with_interrupt(asked, |interrupt, interrupt_context| {
            call(&sys::leafpack_reduce_options {
                struct_size: std::mem::size_of::<sys::leafpack_reduce_options>(),
                timeout_ms: milliseconds_of_call(self.call.timeout),
                name: text_or_null(name),
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
                interrupt,
                interrupt_context,
                stats: if filled.is_some() { &mut stats } else { ptr::null_mut() },
                op,
                bucketing,
                factor,
                bucket_bytes,
                leaves,
                reserved: 0,
                takes_leaf: chosen.as_ref().map(|_| look_up_leaf as _),
                takes_leaf_context: chosen
                    .as_ref()
                    .map_or(ptr::null_mut(), |chosen| chosen as *const Chosen as *mut c_void),
                refusal: text_or_null(&refusal),
            })
        });
        match given {
            Err(Stop::Panic(panic)) => resume_unwind(panic),
            Err(Stop::Earlier(error)) => return Err(error),
            Err(Stop::Argument(_)) | Ok(_) => result?,
        }
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
        let timeout_ms = milliseconds_of_call(self.timeout);
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
