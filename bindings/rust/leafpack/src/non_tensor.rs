//! Leaves that are no tensors.

use std::os::raw::c_char;
use std::ptr;

use leafpack_sys as sys;

use crate::error::{check, slice_of, Error, Result};

/// A plain value as a leaf: compared between ranks, moved by the collectives that move trees, never
/// reduced.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NonTensor {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    String(String),
    Bytes(Vec<u8>),
    List(Vec<NonTensor>),
}

macro_rules! conversions {
    ($($from:ty => $item:ident,)*) => {
        $(impl From<$from> for NonTensor {
            fn from(value: $from) -> Self {
                NonTensor::$item(value.into())
            }
        })*
    };
}

conversions! {
    bool => Bool,
    i64 => Int,
    i32 => Int,
    f64 => Float,
    &str => String,
    String => String,
    Vec<u8> => Bytes,
    Vec<NonTensor> => List,
}

/// A value of the library, freed on drop.
pub(crate) struct RawValue(*mut sys::leafpack_value);

impl Drop for RawValue {
    fn drop(&mut self) {
        // SAFETY: our own handle, or NULL.
        unsafe { sys::leafpack_value_free(self.0) }
    }
}

impl RawValue {
    /// Calls a function that gives a value.
    pub(crate) fn made(
        make: impl FnOnce(*mut *mut sys::leafpack_value) -> *mut sys::leafpack_error,
    ) -> Result<RawValue> {
        let mut raw = ptr::null_mut();
        check(make(&mut raw))?;
        Ok(RawValue(raw))
    }

    pub(crate) fn as_ptr(&self) -> *const sys::leafpack_value {
        self.0
    }

    pub(crate) fn new(value: &NonTensor) -> Result<RawValue> {
        if let NonTensor::List(items) = value {
            let items = items.iter().map(RawValue::new).collect::<Result<Vec<_>>>()?;
            let handles: Vec<_> = items.iter().map(RawValue::as_ptr).collect();
            // SAFETY, here and below: the arguments live during the call, and are copied by it.
            return RawValue::made(|raw| unsafe { sys::leafpack_value_list(handles.as_ptr(), handles.len(), raw) });
        }
        RawValue::made(|raw| unsafe {
            match value {
                NonTensor::None | NonTensor::List(_) => sys::leafpack_value_none(raw),
                NonTensor::Bool(truth) => sys::leafpack_value_bool((*truth).into(), raw),
                NonTensor::Int(number) => sys::leafpack_value_int(*number, raw),
                NonTensor::Float(number) => sys::leafpack_value_float(*number, raw),
                NonTensor::String(text) => sys::leafpack_value_string(text.as_ptr().cast(), text.len(), raw),
                NonTensor::Bytes(bytes) => sys::leafpack_value_bytes(bytes.as_ptr().cast(), bytes.len(), raw),
            }
        })
    }

    pub(crate) fn get(&self) -> Result<NonTensor> {
        let mut kind = 0;
        // SAFETY: the handle lives; what it lends is copied.
        unsafe {
            check(sys::leafpack_value_kind(self.0, &mut kind))?;
            Ok(match kind {
                sys::LEAFPACK_VALUE_NONE => NonTensor::None,
                sys::LEAFPACK_VALUE_BOOL => {
                    let mut truth = 0;
                    check(sys::leafpack_value_get_bool(self.0, &mut truth))?;
                    NonTensor::Bool(truth != 0)
                }
                sys::LEAFPACK_VALUE_INT => {
                    let mut number = 0;
                    check(sys::leafpack_value_get_int(self.0, &mut number))?;
                    NonTensor::Int(number)
                }
                sys::LEAFPACK_VALUE_FLOAT => {
                    let mut number = 0.0;
                    check(sys::leafpack_value_get_float(self.0, &mut number))?;
                    NonTensor::Float(number)
                }
                sys::LEAFPACK_VALUE_STRING => String::from_utf8(self.text()?)
                    .map(NonTensor::String)
                    .unwrap_or_else(|error| NonTensor::Bytes(error.into_bytes())),
                sys::LEAFPACK_VALUE_BYTES => NonTensor::Bytes(self.text()?),
                sys::LEAFPACK_VALUE_LIST => {
                    let mut size = 0;
                    check(sys::leafpack_value_get_size(self.0, &mut size))?;
                    let item = |index| RawValue::made(|raw| sys::leafpack_value_get_item(self.0, index, raw))?.get();
                    NonTensor::List((0..size).map(item).collect::<Result<_>>()?)
                }
                kind => return Err(Error::invalid_argument(format!("a value of the unknown kind {kind}"))),
            })
        }
    }

    /// # Safety
    /// A string or bytes.
    unsafe fn text(&self) -> Result<Vec<u8>> {
        let mut text: *const c_char = ptr::null();
        let mut size = 0;
        check(sys::leafpack_value_get_text(self.0, &mut text, &mut size))?;
        Ok(slice_of(text.cast(), size).to_vec())
    }
}
