//! Key-value stores over which ranks meet.

use std::path::Path;
use std::ptr::{self, NonNull};
use std::time::Duration;

use leafpack_sys as sys;

use crate::error::{assure_interface, check, Error, Result};
use crate::non_tensor::{NonTensor, RawValue};
use crate::options::{c_string, milliseconds};
use crate::start::bytes;

/// Keys and values (any bytes) that the processes of a job share.
///
/// One connection, whose calls come one after the other: a call of another thread waits behind one that
/// waits for a key. [`Store::try_clone`] has a connection of its own. Errors are DeadlineExceeded, with the
/// key, when the store's time is over, and Unavailable when it cannot be reached.
///
/// ```
/// # fn main() -> leafpack::Result<()> {
/// use leafpack::{barrier, CallOptions, Group, GroupOptions, Store};
///
/// let store = Store::memory(None)?; // of one process; Store::tcp and Store::file are for several
/// store.set("seed", "42")?;
/// assert_eq!(store.get("seed")?, b"42");
/// let group = Group::from_store(&store, "training", 0, 1, None, &GroupOptions::default())?;
/// barrier(&group, &CallOptions::default())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Store {
    raw: NonNull<sys::leafpack_store>,
}

// SAFETY: many threads may use a store at once.
unsafe impl Send for Store {}
unsafe impl Sync for Store {}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: our own handle, freed once.
        unsafe { sys::leafpack_store_free(self.raw.as_ptr()) }
    }
}

fn made(make: impl FnOnce(*mut *mut sys::leafpack_store) -> *mut sys::leafpack_error) -> Result<Store> {
    assure_interface();
    let mut raw = ptr::null_mut();
    check(make(&mut raw))?;
    Ok(Store { raw: NonNull::new(raw).expect("the library gave no store") })
}

fn bytes_made(make: impl FnOnce(*mut *mut sys::leafpack_value) -> *mut sys::leafpack_error) -> Result<Vec<u8>> {
    match RawValue::made(make)?.get()? {
        NonTensor::Bytes(bytes) => Ok(bytes),
        other => Err(Error::invalid_argument(format!("a store gave {other:?}"))),
    }
}

/// A key, which is never NULL.
fn key_of(key: &[u8]) -> *const std::os::raw::c_char {
    key.as_ptr().cast()
}

// SAFETY, of all below: the handle lives, and arguments live during the call.
impl Store {
    pub(crate) fn as_raw(&self) -> *mut sys::leafpack_store {
        self.raw.as_ptr()
    }

    /// A store in one process, reached by TCP. With `serves` this process listens there, as long as a handle or
    /// a group over it lives; `port` 0 is then a free one, see [`Store::port`]. `timeout` is of what waits for
    /// a key, and for the server to appear; five minutes if None.
    pub fn tcp(host: &str, port: u16, serves: bool, timeout: Option<Duration>) -> Result<Store> {
        let host = c_string(host)?;
        let timeout = milliseconds(timeout)?;
        made(|raw| unsafe { sys::leafpack_store_tcp(host.as_ptr(), port.into(), serves.into(), timeout, raw) })
    }

    /// A store in a file that all processes see. What is in the file is in the store, so one of a dead run must
    /// be removed before.
    pub fn file(path: &Path, timeout: Option<Duration>) -> Result<Store> {
        let text = path.to_str().ok_or_else(|| Error::invalid_argument(format!("{path:?} is no UTF-8")))?;
        let path = c_string(text)?;
        let timeout = milliseconds(timeout)?;
        made(|raw| unsafe { sys::leafpack_store_file(path.as_ptr(), timeout, raw) })
    }

    /// A store in the memory of this process.
    pub fn memory(timeout: Option<Duration>) -> Result<Store> {
        let timeout = milliseconds(timeout)?;
        made(|raw| unsafe { sys::leafpack_store_memory(timeout, raw) })
    }

    /// The same store with `prefix` and "/" before each key.
    pub fn with_prefix(&self, prefix: &str) -> Result<Store> {
        let prefix = c_string(prefix)?;
        made(|raw| unsafe { sys::leafpack_store_with_prefix(self.as_raw(), prefix.as_ptr(), raw) })
    }

    /// The same store over a connection of its own.
    pub fn try_clone(&self) -> Result<Store> {
        made(|raw| unsafe { sys::leafpack_store_clone(self.as_raw(), raw) })
    }

    pub fn set(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        check(unsafe { sys::leafpack_store_set(self.as_raw(), key_of(key), key.len(), bytes(value), value.len()) })
    }

    /// Waits for the key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let key = key.as_ref();
        bytes_made(|raw| unsafe { sys::leafpack_store_get(self.as_raw(), key_of(key), key.len(), raw) })
    }

    /// Adds to a number that begins with 0 and gives the sum. Its value reads as decimal text.
    /// FailedPrecondition if the value is no number.
    pub fn add(&self, key: impl AsRef<[u8]>, amount: i64) -> Result<i64> {
        let key = key.as_ref();
        let mut sum = 0;
        check(unsafe { sys::leafpack_store_add(self.as_raw(), key_of(key), key.len(), amount, &mut sum) })?;
        Ok(sum)
    }

    /// In one step: sets the key to `desired` if it has the value `expected`, or if it has none and `expected` is
    /// empty. Gives the value afterwards; `expected` where there is still none.
    pub fn compare_set(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
        desired: impl AsRef<[u8]>,
    ) -> Result<Vec<u8>> {
        let (key, expected, desired) = (key.as_ref(), expected.as_ref(), desired.as_ref());
        bytes_made(|raw| unsafe {
            sys::leafpack_store_compare_set(
                self.as_raw(),
                key_of(key),
                key.len(),
                bytes(expected),
                expected.len(),
                bytes(desired),
                desired.len(),
                raw,
            )
        })
    }

    /// Whether the key is there now.
    pub fn has(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        let mut there = 0;
        check(unsafe { sys::leafpack_store_has(self.as_raw(), key_of(key), key.len(), &mut there) })?;
        Ok(there != 0)
    }

    /// Returns when the key is there, after `timeout` (the store's if None) at the latest.
    pub fn wait(&self, key: impl AsRef<[u8]>, timeout: Option<Duration>) -> Result<()> {
        let key = key.as_ref();
        let timeout = milliseconds(timeout)?;
        check(unsafe { sys::leafpack_store_wait(self.as_raw(), key_of(key), key.len(), timeout) })
    }

    /// True if there was something to remove.
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        let mut was_there = 0;
        check(unsafe { sys::leafpack_store_remove(self.as_raw(), key_of(key), key.len(), &mut was_there) })?;
        Ok(was_there != 0)
    }

    /// Keys of the whole store, whatever the prefix.
    pub fn num_keys(&self) -> Result<i64> {
        let mut num_keys = 0;
        check(unsafe { sys::leafpack_store_num_keys(self.as_raw(), &mut num_keys) })?;
        Ok(num_keys)
    }

    /// Of a TCP store; else 0.
    pub fn port(&self) -> Result<u16> {
        let mut port = 0;
        check(unsafe { sys::leafpack_store_port(self.as_raw(), &mut port) })?;
        Ok(port.try_into().unwrap_or(0))
    }
}
