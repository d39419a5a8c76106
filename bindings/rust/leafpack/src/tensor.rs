//! Tensors: typed memory that leaves are made of.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::raw::c_void;
use std::ptr::{self, NonNull};

use leafpack_sys as sys;

use crate::dtype::{DType, Element, Number};
use crate::error::{assure_interface, check, slice_of, Error, Result};

/// What a tensor is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorKind {
    /// Strided, any strides.
    Dense,
    /// Anything else that has sizes.
    Sparse,
    /// A leaf without memory.
    Undefined,
}

/// Where a tensor lies, by DLPack's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// 1 is the CPU.
    pub device_type: i32,
    pub index: i32,
}

/// A tensor, the only handle on its memory: that of a `Vec` (`Tensor<'static>`), or of a slice that
/// is borrowed for `'a`. [`TensorDict::set`](crate::TensorDict::set) moves it into a tree.
#[derive(Debug)]
pub struct Tensor<'a> {
    raw: NonNull<sys::leafpack_tensor>,
    _memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: the library's functions may be called from any thread, memory is read through & and written
// through &mut only, and elements are plain numbers.
unsafe impl Send for Tensor<'_> {}
unsafe impl Sync for Tensor<'_> {}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        // SAFETY: our own handle, freed once.
        unsafe { sys::leafpack_tensor_free(self.raw.as_ptr()) }
    }
}

unsafe extern "C" fn release_vec<T>(context: *mut c_void) {
    drop(Box::from_raw(context as *mut Vec<T>));
}

fn sizes_for(sizes: &[usize], len: usize) -> Result<Vec<i64>> {
    let product = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    if product != Some(len) {
        return Err(Error::invalid_argument(format!("sizes {sizes:?} do not make {len} elements")));
    }
    signed(sizes)
}

/// Sizes and strides of a view of `len` elements, which must not reach beyond them.
fn view_of(sizes: &[usize], strides: &[usize], len: usize) -> Result<(Vec<i64>, Vec<i64>)> {
    let outside = || {
        Error::invalid_argument(format!("sizes {sizes:?} with strides {strides:?} are no view of {len} elements"))
    };
    if sizes.len() != strides.len() {
        return Err(outside());
    }
    if !sizes.contains(&0) {
        let mut last = 0usize;
        for (size, stride) in sizes.iter().zip(strides) {
            let span = (size - 1).checked_mul(*stride).ok_or_else(outside)?;
            last = last.checked_add(span).ok_or_else(outside)?;
        }
        if last >= len {
            return Err(outside());
        }
    }
    Ok((signed(sizes)?, signed(strides)?))
}

pub(crate) fn signed(sizes: &[usize]) -> Result<Vec<i64>> {
    let convert = |size: &usize| {
        i64::try_from(*size).map_err(|_| Error::invalid_argument(format!("{size} is too large a size")))
    };
    sizes.iter().map(convert).collect()
}

impl Tensor<'static> {
    /// A tensor of these elements, row-major, that takes the vector over; nothing is copied.
    pub fn from_vec<T: Element>(data: Vec<T>, sizes: &[usize]) -> Result<Self> {
        let sizes = sizes_for(sizes, data.len())?;
        from_vec(data, &sizes, None)
    }

    /// A view of the elements with strides, which count elements; the tensor takes the vector over.
    pub fn from_vec_strided<T: Element>(data: Vec<T>, sizes: &[usize], strides: &[usize]) -> Result<Self> {
        let (sizes, strides) = view_of(sizes, strides, data.len())?;
        from_vec(data, &sizes, Some(&strides))
    }

    /// Zeros in memory of the library.
    pub fn zeros(dtype: DType, sizes: &[usize]) -> Result<Self> {
        let sizes = signed(sizes)?;
        // SAFETY: as the header asks.
        unsafe { made(|raw| sys::leafpack_tensor_zeros(dtype.number(), sizes.len(), sizes.as_ptr(), raw)) }
    }

    /// A leaf that has no memory yet: a gradient that does not exist.
    pub fn undefined() -> Result<Self> {
        // SAFETY: as the header asks.
        unsafe { made(|raw| sys::leafpack_tensor_undefined(raw)) }
    }
}

fn from_vec<T: Element>(data: Vec<T>, sizes: &[i64], strides: Option<&[i64]>) -> Result<Tensor<'static>> {
    let mut data = Box::new(data);
    let memory: *mut T = data.as_mut_ptr();
    let len = data.len();
    let context = Box::into_raw(data);
    // SAFETY: the vector lives until release_vec; where that is not called it is freed here.
    unsafe {
        from_memory(T::DTYPE, memory, len, sizes, strides, Some(release_vec::<T>), context.cast()).map_err(|error| {
            drop(Box::from_raw(context));
            error
        })
    }
}

/// Calls a function that makes a tensor.
///
/// # Safety
/// `make` gives a handle of ours, whose memory lives for `'a`.
pub(crate) unsafe fn made<'a>(
    make: impl FnOnce(*mut *mut sys::leafpack_tensor) -> *mut sys::leafpack_error,
) -> Result<Tensor<'a>> {
    assure_interface();
    let mut raw = ptr::null_mut();
    check(make(&mut raw))?;
    Ok(Tensor::from_raw(raw))
}

/// # Safety
/// `memory` holds `len` elements of `dtype`, each as large as a T, for `'a`, or until `release` is called.
unsafe fn from_memory<'a, T>(
    dtype: DType,
    memory: *mut T,
    len: usize,
    sizes: &[i64],
    strides: Option<&[i64]>,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
    context: *mut c_void,
) -> Result<Tensor<'a>> {
    let buffer = sys::leafpack_buffer {
        struct_size: std::mem::size_of::<sys::leafpack_buffer>(),
        data: if len == 0 { ptr::null_mut() } else { memory.cast() },
        dtype: dtype.number(),
        reserved: 0,
        num_dims: sizes.len(),
        sizes: sizes.as_ptr(),
        strides: strides.map_or(ptr::null(), |strides| strides.as_ptr()),
        release,
        context,
    };
    made(|raw| sys::leafpack_tensor_from_buffer(&buffer, raw))
}

impl<'a> Tensor<'a> {
    /// A tensor over a slice, where it lies. The slice is borrowed until the tensor, and the tree that it
    /// is moved into, are gone. Of bools: [`Tensor::bools_from_slice`].
    ///
    /// ```compile_fail,E0277
    /// # use leafpack::*;
    /// let mut bools = [true, false];
    /// let tensor = Tensor::from_slice(&mut bools, &[2]); // what if a call leaves a 2 there?
    /// ```
    pub fn from_slice<T: Number>(data: &'a mut [T], sizes: &[usize]) -> Result<Self> {
        let sizes = sizes_for(sizes, data.len())?;
        // SAFETY: borrowed for 'a, as is the tensor; any bytes that are written there are numbers.
        unsafe { from_memory(T::DTYPE, data.as_mut_ptr(), data.len(), &sizes, None, None, ptr::null_mut()) }
    }

    /// A tensor of bools over bytes, where they lie; else as [`Tensor::from_slice`]. InvalidArgument if a byte is neither
    /// 0 nor 1, which they may be afterwards, if another rank sends it.
    ///
    /// ```
    /// # fn main() -> leafpack::Result<()> {
    /// # use leafpack::*;
    /// let mut mask = [1u8, 0, 1];
    /// let mut tree = TensorDict::new();
    /// tree.set("mask", Tensor::bools_from_slice(&mut mask, &[3])?)?;
    /// assert_eq!(tree.slice::<bool>("mask")?, [true, false, true]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn bools_from_slice(data: &'a mut [u8], sizes: &[usize]) -> Result<Self> {
        let sizes = sizes_for(sizes, data.len())?;
        if !bool::are_values(data) {
            return Err(Error::invalid_argument("bools that hold a byte which is neither 0 nor 1"));
        }
        // SAFETY: borrowed for 'a, as is the tensor; any bytes are u8, and `elements` looks at them before they are bools.
        unsafe { from_memory(DType::Bool, data.as_mut_ptr(), data.len(), &sizes, None, None, ptr::null_mut()) }
    }

    /// A view of a slice with strides, which count elements.
    ///
    /// ```
    /// # fn main() -> leafpack::Result<()> {
    /// # use leafpack::*;
    /// let mut image = [0u8; 12]; // three channels side by side
    /// let red = Tensor::from_slice_strided(&mut image, &[4], &[3])?;
    /// assert_eq!(red.strides(), Some(&[3][..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_slice_strided<T: Number>(data: &'a mut [T], sizes: &[usize], strides: &[usize]) -> Result<Self> {
        let (sizes, strides) = view_of(sizes, strides, data.len())?;
        // SAFETY: borrowed for 'a, as is the tensor; the view stays inside, and any bytes are numbers.
        unsafe { from_memory(T::DTYPE, data.as_mut_ptr(), data.len(), &sizes, Some(&strides), None, ptr::null_mut()) }
    }

    /// # Safety
    /// A handle of ours, not NULL, whose memory lives for `'a`.
    pub(crate) unsafe fn from_raw(raw: *mut sys::leafpack_tensor) -> Self {
        Tensor { raw: NonNull::new(raw).expect("the library gave no tensor"), _memory: PhantomData }
    }

    pub(crate) fn as_raw(&self) -> *const sys::leafpack_tensor {
        self.raw.as_ptr()
    }

    pub(crate) fn info(&self) -> sys::leafpack_tensor_info {
        // SAFETY: zeros are valid in each member; the handle lives.
        unsafe {
            let mut info: sys::leafpack_tensor_info = std::mem::zeroed();
            info.struct_size = std::mem::size_of::<sys::leafpack_tensor_info>();
            check(sys::leafpack_tensor_get_info(self.as_raw(), &mut info)).expect("a tensor tells about itself");
            info
        }
    }

    /// None of an undefined tensor, and of dtypes that this version does not know.
    pub fn dtype(&self) -> Option<DType> {
        DType::from_number(self.info().dtype)
    }

    /// Elements in each dimension.
    pub fn sizes(&self) -> &[i64] {
        let info = self.info();
        // SAFETY: lent for as long as the handle lives.
        unsafe { slice_of(info.sizes, info.num_dims) }
    }

    /// Elements from one index to the next in each dimension; None of what is not dense.
    pub fn strides(&self) -> Option<&[i64]> {
        let info = self.info();
        // SAFETY: lent for as long as the handle lives.
        (info.kind == sys::LEAFPACK_DENSE).then(|| unsafe { slice_of(info.strides, info.num_dims) })
    }

    pub fn num_elements(&self) -> i64 {
        self.info().num_elements
    }

    /// Bytes of an element; 0 of an undefined tensor.
    pub fn element_size(&self) -> i64 {
        self.info().element_size
    }

    pub fn kind(&self) -> TensorKind {
        match self.info().kind {
            sys::LEAFPACK_DENSE => TensorKind::Dense,
            sys::LEAFPACK_UNDEFINED => TensorKind::Undefined,
            _ => TensorKind::Sparse,
        }
    }

    pub fn is_undefined(&self) -> bool {
        self.kind() == TensorKind::Undefined
    }

    /// None of an undefined tensor.
    pub fn device(&self) -> Option<Device> {
        let info = self.info();
        (info.kind != sys::LEAFPACK_UNDEFINED)
            .then(|| Device { device_type: info.device_type, index: info.device_index })
    }

    /// The memory of a dense, row-major tensor on the CPU, and its size in bytes.
    pub(crate) fn memory(&self) -> Result<(*mut u8, usize)> {
        let info = self.info();
        if info.kind != sys::LEAFPACK_DENSE || info.device_type != sys::DL_CPU {
            return Err(Error::invalid_argument("only a dense tensor in CPU memory is a slice"));
        }
        // SAFETY: lent, dense.
        let (sizes, strides) =
            unsafe { (slice_of(info.sizes, info.num_dims), slice_of(info.strides, info.num_dims)) };
        if info.num_elements == 0 {
            return Ok((NonNull::<u64>::dangling().as_ptr().cast(), 0));
        }
        let mut next = 1;
        for (size, stride) in sizes.iter().zip(strides).rev() {
            if *size != 1 && *stride != next {
                return Err(Error::invalid_argument(format!(
                    "a tensor of sizes {sizes:?} and strides {strides:?} has gaps or another order than row-major"
                )));
            }
            next *= size;
        }
        Ok((info.data.cast(), (info.num_elements * info.element_size) as usize))
    }

    /// The memory as elements of T.
    fn elements<T: Element>(&self) -> Result<(*mut T, usize)> {
        let dtype = self.dtype();
        if dtype != Some(T::DTYPE) {
            let found = dtype.map_or("no dtype that is known here".to_string(), DType::name);
            return Err(Error::invalid_argument(format!(
                "a tensor of {found} is no slice of {}",
                T::DTYPE.name()
            )));
        }
        let (memory, bytes) = self.memory()?;
        let elements: *mut T = memory.cast();
        if elements as usize % std::mem::align_of::<T>() != 0 {
            return Err(Error::invalid_argument("the tensor's memory is not aligned"));
        }
        // SAFETY: that many bytes are there.
        if !T::are_values(unsafe { slice_of(memory, bytes) }) {
            return Err(Error::invalid_argument("a tensor of bool holds a byte that is neither 0 nor 1"));
        }
        Ok((elements, bytes / std::mem::size_of::<T>()))
    }

    /// The elements. InvalidArgument if they are of another type, not in CPU memory, or not row-major
    /// without gaps.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        let (elements, len) = self.elements::<T>()?;
        // SAFETY: checked; nobody writes while self is borrowed.
        Ok(unsafe { slice_of(elements, len) })
    }

    /// The elements, to be written. Errors as of `as_slice`.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        let (elements, len) = self.elements::<T>()?;
        // SAFETY: checked (with no elements the pointer is aligned too); nobody else has it.
        Ok(unsafe { std::slice::from_raw_parts_mut(elements, len) })
    }

    /// The memory as it is, whatever the dtype.
    pub fn as_bytes(&self) -> Result<&[u8]> {
        let (memory, bytes) = self.memory()?;
        // SAFETY: as in as_slice.
        Ok(unsafe { slice_of(memory, bytes) })
    }

    /// The same, to be written: the way to elements that have no type in Rust. InvalidArgument of bools, which
    /// not every byte is.
    pub fn as_mut_bytes(&mut self) -> Result<&mut [u8]> {
        if self.dtype() == Some(DType::Bool) {
            return Err(Error::invalid_argument("not every byte is a bool"));
        }
        let (memory, bytes) = self.memory()?;
        // SAFETY: as in as_mut_slice; any bytes are numbers.
        Ok(unsafe { std::slice::from_raw_parts_mut(memory, bytes) })
    }
}

/// A tensor of a tree that is borrowed for `'t`.
#[derive(Debug)]
pub struct TensorRef<'t>(pub(crate) Tensor<'t>);

impl<'t> TensorRef<'t> {
    /// As [`Tensor::as_slice`], for as long as the tree is borrowed.
    pub fn as_slice<T: Element>(&self) -> Result<&'t [T]> {
        let (elements, len) = self.0.elements::<T>()?;
        // SAFETY: the tree, which nobody changes for 't, keeps the memory.
        Ok(unsafe { slice_of(elements, len) })
    }
}

impl<'t> Deref for TensorRef<'t> {
    type Target = Tensor<'t>;
    fn deref(&self) -> &Tensor<'t> {
        &self.0
    }
}

/// A tensor of a tree that is borrowed for `'t`, to be written.
#[derive(Debug)]
pub struct TensorMut<'t>(pub(crate) Tensor<'t>);

impl<'t> TensorMut<'t> {
    /// As [`Tensor::as_mut_slice`], for as long as the tree is borrowed.
    pub fn into_mut_slice<T: Element>(self) -> Result<&'t mut [T]> {
        let (elements, len) = self.0.elements::<T>()?;
        // SAFETY: the tree, which is ours alone for 't, keeps the memory.
        Ok(unsafe { std::slice::from_raw_parts_mut(elements, len) })
    }
}

impl<'t> Deref for TensorMut<'t> {
    type Target = Tensor<'t>;
    fn deref(&self) -> &Tensor<'t> {
        &self.0
    }
}

impl DerefMut for TensorMut<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
