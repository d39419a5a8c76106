//! Where log messages go.

use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::Mutex;

use leafpack_sys as sys;

use crate::error::{check, text_of, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Info,
    Warning,
    Error,
}

/// One message, which lives during the call only.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LogMessage<'m> {
    pub severity: Severity,
    /// Where in leafpack's sources it comes from.
    pub file: &'m str,
    pub line: i32,
    pub text: &'m str,
}

type Log = Box<dyn Fn(&LogMessage<'_>) + Send + Sync>;

// The closure that the library has, as a pointer so that the lock is never held while it runs.
static CURRENT: Mutex<usize> = Mutex::new(0);

unsafe extern "C" fn pass_on(
    context: *mut c_void,
    severity: i32,
    file: *const c_char,
    line: i32,
    message: *const c_char,
) {
    // The closure lives until the library has another one.
    let log = &*(context as *const Log);
    let (file, text) = (text_of(file), text_of(message));
    let severity = match severity {
        sys::LEAFPACK_LOG_INFO => Severity::Info,
        sys::LEAFPACK_LOG_WARNING => Severity::Warning,
        _ => Severity::Error,
    };
    // A panic must not cross the library; there is nobody to tell.
    let _ = catch_unwind(AssertUnwindSafe(|| log(&LogMessage { severity, file: &file, line, text: &text })));
}

/// Gives log messages to `log` in place of the standard error stream; None gives them to that stream
/// again. Called from any thread, by several at once. It must not call leafpack.
///
/// ```
/// # fn main() -> leafpack::Result<()> {
/// leafpack::set_log(Some(Box::new(|message| {
///     eprintln!("{:?} {}:{}: {}", message.severity, message.file, message.line, message.text);
/// })))?;
/// leafpack::set_log(None)?;
/// # Ok(())
/// # }
/// ```
pub fn set_log(log: Option<Box<dyn Fn(&LogMessage<'_>) + Send + Sync>>) -> Result<()> {
    let mut current = CURRENT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let next = log.map_or(ptr::null_mut(), |log: Log| Box::into_raw(Box::new(log)));
    let function = if next.is_null() { None } else { Some(pass_on as _) };
    // SAFETY: when this returns, the closure before is not called any more.
    let result = check(unsafe { sys::leafpack_set_log(function, next.cast()) });
    let unused = if result.is_ok() { std::mem::replace(&mut *current, next as usize) } else { next as usize };
    if unused != 0 {
        // SAFETY: made by Box::into_raw, used by nobody.
        drop(unsafe { Box::from_raw(unused as *mut Log) });
    }
    result
}
