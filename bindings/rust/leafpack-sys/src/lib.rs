//! Declarations of `leafpack.h`, the C interface of leafpack, as they are there. Its comments say what
//! each function does, who frees what, and from which threads it may be called. The crate `leafpack`
//! is the safe face of the same.
#![allow(non_camel_case_types)]


use std::os::raw::{c_char, c_void};

include!("bindings.rs");

/// `kDLCPU` of dlpack.h.
pub const DL_CPU: i32 = 1;

/// `DLDevice` of dlpack.h, which is not part of leafpack.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

/// `DLDataType` of dlpack.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// `DLTensor` of dlpack.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

/// `DLManagedTensor` of dlpack.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DLManagedTensor {
    pub dl_tensor: DLTensor,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(managed: *mut DLManagedTensor)>,
}

/// `DLPackVersion` of dlpack.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DLPackVersion {
    pub major: u32,
    pub minor: u32,
}

/// `DLManagedTensorVersioned` of dlpack.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DLManagedTensorVersioned {
    pub version: DLPackVersion,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(managed: *mut DLManagedTensorVersioned)>,
    pub flags: u64,
    pub dl_tensor: DLTensor,
}
