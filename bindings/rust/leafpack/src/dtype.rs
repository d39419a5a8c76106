//! Types of elements.

use leafpack_sys as sys;

use crate::error::text_of;

macro_rules! dtypes {
    ($($item:ident = $number:ident,)*) => {
        /// The type of a tensor's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum DType {
            $($item,)*
        }

        impl DType {
            pub(crate) fn number(self) -> i32 {
                match self {
                    $(DType::$item => sys::$number,)*
                }
            }

            pub(crate) fn from_number(number: i32) -> Option<DType> {
                match number {
                    $(sys::$number => Some(DType::$item),)*
                    _ => None,
                }
            }
        }
    };
}

dtypes! {
    UInt8 = LEAFPACK_UINT8,
    Int8 = LEAFPACK_INT8,
    Int16 = LEAFPACK_INT16,
    Int32 = LEAFPACK_INT32,
    Int64 = LEAFPACK_INT64,
    Float16 = LEAFPACK_FLOAT16,
    Float32 = LEAFPACK_FLOAT32,
    Float64 = LEAFPACK_FLOAT64,
    Complex32 = LEAFPACK_COMPLEX32,
    Complex64 = LEAFPACK_COMPLEX64,
    Complex128 = LEAFPACK_COMPLEX128,
    Bool = LEAFPACK_BOOL,
    BFloat16 = LEAFPACK_BFLOAT16,
    Float8E5M2 = LEAFPACK_FLOAT8_E5M2,
    Float8E4M3Fn = LEAFPACK_FLOAT8_E4M3FN,
    Float8E5M2Fnuz = LEAFPACK_FLOAT8_E5M2FNUZ,
    Float8E4M3Fnuz = LEAFPACK_FLOAT8_E4M3FNUZ,
    UInt16 = LEAFPACK_UINT16,
    UInt32 = LEAFPACK_UINT32,
    UInt64 = LEAFPACK_UINT64,
    Float8E8M0Fnu = LEAFPACK_FLOAT8_E8M0FNU,
}

impl DType {
    /// "float32", as errors and layouts have it.
    pub fn name(self) -> String {
        // SAFETY: the text lives for ever.
        unsafe { text_of(sys::leafpack_dtype_name(self.number())) }
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        // SAFETY: no pointers.
        unsafe { sys::leafpack_dtype_size(self.number()) }
    }
}

mod private {
    pub trait Sealed {}
}

/// A Rust type that has a dtype. What has none here (complex numbers, 8-bit floats) is reached as bytes
/// ([`Tensor::as_bytes`](crate::Tensor::as_bytes)) or as DLPack.
pub trait Element: private::Sealed + Copy + Send + Sync + 'static {
    const DTYPE: DType;
    /// Whether these bytes are values of the type.
    #[doc(hidden)]
    fn are_values(_bytes: &[u8]) -> bool {
        true
    }
}

/// An element of which any bytes are a value. All are but bool: a rank in another language may send it any byte, which
/// memory that Rust takes for bools must not hold.
pub trait Number: Element {}

macro_rules! elements {
    ($($element:ty = $dtype:ident,)*) => {
        $(
            impl private::Sealed for $element {}
            impl Element for $element {
                const DTYPE: DType = DType::$dtype;
            }
            impl Number for $element {}
        )*
    };
}

elements! {
    u8 = UInt8, u16 = UInt16, u32 = UInt32, u64 = UInt64,
    i8 = Int8, i16 = Int16, i32 = Int32, i64 = Int64,
    f32 = Float32, f64 = Float64,
    F16 = Float16, BF16 = BFloat16,
}

impl private::Sealed for bool {}
impl Element for bool {
    const DTYPE: DType = DType::Bool;
    // A peer may have sent any byte.
    fn are_values(bytes: &[u8]) -> bool {
        bytes.iter().all(|byte| *byte <= 1)
    }
}

/// The bits of a half-precision float.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The bits of a bfloat16: the upper half of an `f32`'s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct BF16(pub u16);

impl BF16 {
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}
