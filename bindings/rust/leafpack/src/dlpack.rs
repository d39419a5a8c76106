//! Tensors as DLPack, in and out.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use leafpack_sys as sys;

use crate::error::{check, Result};
use crate::tensor::{made, Tensor};

impl Tensor<'static> {
    /// A tensor over memory that came as DLPack; nothing is copied. On an error `managed` stays the
    /// caller's.
    ///
    /// # Safety
    /// `managed` is valid, its memory may be used from any thread, and nobody else uses it while the
    /// tensor, or a tree that it is moved into, lives.
    pub unsafe fn from_dlpack(managed: *mut sys::DLManagedTensor) -> Result<Self> {
        made(|raw| sys::leafpack_tensor_from_dlpack(managed, raw))
    }

    /// The same of DLPack 1, which tells its version; what may only be read is refused.
    ///
    /// # Safety
    /// As of [`Tensor::from_dlpack`].
    pub unsafe fn from_dlpack_versioned(managed: *mut sys::DLManagedTensorVersioned) -> Result<Self> {
        made(|raw| sys::leafpack_tensor_from_dlpack_versioned(managed, raw))
    }
}

impl Tensor<'_> {
    /// The tensor as DLPack; nothing is copied.
    pub fn to_dlpack(&self) -> Result<DlPack<'_>> {
        let mut managed = ptr::null_mut();
        // SAFETY: as the header asks.
        unsafe { check(sys::leafpack_tensor_to_dlpack(self.as_raw(), &mut managed))? };
        let managed = NonNull::new(managed).expect("the library gave no DLPack");
        Ok(DlPack { managed, _tensor: PhantomData })
    }

    /// The same as DLPack 1.
    pub fn to_dlpack_versioned(&self) -> Result<DlPackVersioned<'_>> {
        let mut managed = ptr::null_mut();
        // SAFETY: as the header asks.
        unsafe { check(sys::leafpack_tensor_to_dlpack_versioned(self.as_raw(), &mut managed))? };
        let managed = NonNull::new(managed).expect("the library gave no DLPack");
        Ok(DlPackVersioned { managed, _tensor: PhantomData })
    }
}

macro_rules! dlpack {
    ($(#[$doc:meta])* $name:ident, $managed:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<'t> {
            managed: NonNull<sys::$managed>,
            _tensor: PhantomData<&'t ()>,
        }

        impl $name<'_> {
            /// What the pointer points to lives as long as `self`.
            pub fn as_ptr(&self) -> *mut sys::$managed {
                self.managed.as_ptr()
            }

            /// Gives it away: who takes it calls its deleter once. The memory stays until then, but if it
            /// was borrowed ([`Tensor::from_slice`]) only as long as that, and who writes it must know that
            /// Rust may be reading.
            pub fn into_raw(self) -> *mut sys::$managed {
                let managed = self.managed.as_ptr();
                std::mem::forget(self);
                managed
            }
        }

        impl Drop for $name<'_> {
            fn drop(&mut self) {
                // SAFETY: ours, called once.
                unsafe {
                    if let Some(deleter) = self.managed.as_ref().deleter {
                        deleter(self.managed.as_ptr());
                    }
                }
            }
        }
    };
}

dlpack! {
    /// A tensor as DLPack; dropping it calls the deleter.
    DlPack, DLManagedTensor
}

dlpack! {
    /// A tensor as DLPack 1, which tells its version; dropping it calls the deleter.
    DlPackVersioned, DLManagedTensorVersioned
}
