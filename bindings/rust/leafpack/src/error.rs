//! Errors: what went wrong, where in the tree, and which ranks it is about.

use std::ffi::CStr;
use std::fmt;
use std::os::raw::c_char;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use leafpack_sys as sys;

/// What a function of this crate that can fail gives.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident, $default:ident { $($(#[$item_doc:meta])* $item:ident = $number:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$item_doc])* $item,)*
        }

        impl $name {
            fn from_number(number: i32) -> Self {
                match number {
                    $(sys::$number => $name::$item,)*
                    _ => $name::$default,
                }
            }
        }
    };
}

numbered! {
    /// The code of an error, as `absl::StatusCode` in C++.
    ErrorCode, Unknown {
        /// Another rank gave the call up, or this one was interrupted.
        Cancelled = LEAFPACK_CANCELLED,
        Unknown = LEAFPACK_UNKNOWN,
        /// This rank's own tree or options.
        InvalidArgument = LEAFPACK_INVALID_ARGUMENT,
        DeadlineExceeded = LEAFPACK_DEADLINE_EXCEEDED,
        NotFound = LEAFPACK_NOT_FOUND,
        AlreadyExists = LEAFPACK_ALREADY_EXISTS,
        ResourceExhausted = LEAFPACK_RESOURCE_EXHAUSTED,
        /// The ranks disagree, or another rank refused.
        FailedPrecondition = LEAFPACK_FAILED_PRECONDITION,
        Aborted = LEAFPACK_ABORTED,
        OutOfRange = LEAFPACK_OUT_OF_RANGE,
        /// An op, a dtype or a backend that there is not.
        Unimplemented = LEAFPACK_UNIMPLEMENTED,
        /// A bug of leafpack.
        Internal = LEAFPACK_INTERNAL,
        /// A peer is lost.
        Unavailable = LEAFPACK_UNAVAILABLE,
    }
}

numbered! {
    /// What kind of fault an error reports, finer than its code: the rows of `docs/errors.md`.
    ErrorKind, Other {
        Other = LEAFPACK_KIND_OTHER,
        /// The ranks disagree: see [`Error::path`] and [`Error::ranks`].
        LayoutMismatch = LEAFPACK_KIND_LAYOUT_MISMATCH,
        /// Another rank refused or failed: see [`Error::ranks`].
        PeerRefused = LEAFPACK_KIND_PEER_REFUSED,
        /// An op, a dtype or a kind of leaf: see [`Error::path`].
        Unsupported = LEAFPACK_KIND_UNSUPPORTED,
        /// Too late, or another rank gave up: see [`Error::ranks`].
        Deadline = LEAFPACK_KIND_DEADLINE,
        /// Given up on this rank.
        Interrupted = LEAFPACK_KIND_INTERRUPTED,
        /// A rank died or left: see [`Error::ranks`].
        PeerLost = LEAFPACK_KIND_PEER_LOST,
    }
}

/// An error of leafpack. A plain value: it holds nothing of the C library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: ErrorCode,
    kind: ErrorKind,
    message: String,
    path: String,
    ranks: Vec<i32>,
    paths_done: Vec<String>,
    tree_unchanged: bool,
    outcome_unknown: bool,
}

impl Error {
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// One sentence that names path, values and ranks; the same in every language of a job.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The printable path of the first leaf or node concerned, or "". Of functions that are given a path, that one.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The ranks of the job that the error is about, sorted.
    pub fn ranks(&self) -> &[i32] {
        &self.ranks
    }

    /// Leaves that hold their result already, of a call that failed while data moved.
    pub fn paths_done(&self) -> &[String] {
        &self.paths_done
    }

    /// Every leaf of this rank is as it was before the call.
    pub fn tree_unchanged(&self) -> bool {
        self.tree_unchanged
    }

    /// Other ranks may have succeeded.
    pub fn outcome_unknown(&self) -> bool {
        self.outcome_unknown
    }

    /// An error of this crate's own checks.
    pub(crate) fn invalid_argument(message: impl Into<String>) -> Error {
        Error {
            code: ErrorCode::InvalidArgument,
            kind: ErrorKind::Other,
            message: message.into(),
            path: String::new(),
            ranks: Vec::new(),
            paths_done: Vec::new(),
            tree_unchanged: true,
            outcome_unknown: false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

impl std::error::Error for Error {}

/// A copy of text that the C library lends; "" for NULL.
///
/// # Safety
/// `text` is NULL or ends with a zero byte.
pub(crate) unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    CStr::from_ptr(text).to_string_lossy().into_owned()
}

/// Before anything is made: a library of another interface than the crate's must not be called.
pub(crate) fn assure_interface() {
    static OF_LIBRARY: AtomicI32 = AtomicI32::new(0);
    let mut found = OF_LIBRARY.load(Ordering::Relaxed);
    if found == 0 {
        // SAFETY: no arguments; of every version.
        found = unsafe { sys::leafpack_abi_version() };
        OF_LIBRARY.store(found, Ordering::Relaxed);
    }
    let wanted = sys::LEAFPACK_ABI_VERSION;
    assert_eq!(found, wanted, "libleafpack.so has the interface {found}, the crate leafpack is for {wanted}");
}

/// Takes over what a C function returned.
pub(crate) fn check(raw: *mut sys::leafpack_error) -> Result<()> {
    if raw.is_null() {
        return Ok(());
    }
    // SAFETY: an error object that is ours; what it lends is copied before it is freed.
    unsafe {
        let mut ranks = ptr::null();
        let num_ranks = sys::leafpack_error_ranks(raw, &mut ranks);
        let error = Error {
            code: ErrorCode::from_number(sys::leafpack_error_code(raw)),
            kind: ErrorKind::from_number(sys::leafpack_error_kind(raw)),
            message: text_of(sys::leafpack_error_message(raw)),
            path: text_of(sys::leafpack_error_path(raw)),
            ranks: slice_of(ranks, num_ranks).to_vec(),
            paths_done: (0..sys::leafpack_error_num_paths_done(raw))
                .map(|index| text_of(sys::leafpack_error_path_done(raw, index)))
                .collect(),
            tree_unchanged: sys::leafpack_error_tree_unchanged(raw) != 0,
            outcome_unknown: sys::leafpack_error_outcome_unknown(raw) != 0,
        };
        sys::leafpack_error_free(raw);
        Err(error)
    }
}

/// An array that the C library lends, which may be NULL when it is empty.
///
/// # Safety
/// `data` points to `size` elements that live for `'a`, if `size` is not 0.
pub(crate) unsafe fn slice_of<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        return &[];
    }
    std::slice::from_raw_parts(data, size)
}
