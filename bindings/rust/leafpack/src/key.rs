//! Paths of leaves.

use leafpack_sys as sys;
use std::ptr;

use crate::error::slice_of;

/// One step of a path: a name, in which dots mean nothing, or a position in a list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyComponent {
    /// Any bytes; UTF-8 by convention.
    Name(Vec<u8>),
    Position(i64),
}

impl From<&str> for KeyComponent {
    fn from(name: &str) -> Self {
        KeyComponent::Name(name.as_bytes().to_vec())
    }
}

impl From<String> for KeyComponent {
    fn from(name: String) -> Self {
        KeyComponent::Name(name.into_bytes())
    }
}

impl From<i64> for KeyComponent {
    fn from(position: i64) -> Self {
        KeyComponent::Position(position)
    }
}

impl From<i32> for KeyComponent {
    fn from(position: i32) -> Self {
        KeyComponent::Position(position.into())
    }
}

/// The path of a leaf or a node: components from the root down. A plain string is one name;
/// [`key!`](crate::key) makes longer ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NestedKey(Vec<KeyComponent>);

impl NestedKey {
    pub fn components(&self) -> &[KeyComponent] {
        &self.0
    }

    /// The path as the C library takes it, for the time of a call.
    pub(crate) fn with_raw<R>(&self, call: impl FnOnce(*const sys::leafpack_component, usize) -> R) -> R {
        let raw: Vec<sys::leafpack_component> = self.0.iter().map(to_raw).collect();
        call(raw.as_ptr(), raw.len())
    }

    /// # Safety
    /// `path` points to `depth` components that the C library lends.
    pub(crate) unsafe fn from_raw(path: *const sys::leafpack_component, depth: usize) -> NestedKey {
        let component = |raw: &sys::leafpack_component| {
            if raw.kind == sys::LEAFPACK_POSITION {
                KeyComponent::Position(raw.position)
            } else {
                KeyComponent::Name(slice_of(raw.name.cast(), raw.name_size).to_vec())
            }
        };
        NestedKey(slice_of(path, depth).iter().map(component).collect())
    }
}

fn to_raw(component: &KeyComponent) -> sys::leafpack_component {
    match component {
        KeyComponent::Name(name) => sys::leafpack_component {
            kind: sys::LEAFPACK_NAME,
            reserved: 0,
            name: name.as_ptr().cast(),
            name_size: name.len(),
            position: 0,
        },
        KeyComponent::Position(position) => sys::leafpack_component {
            kind: sys::LEAFPACK_POSITION,
            reserved: 0,
            name: ptr::null(),
            name_size: 0,
            position: *position,
        },
    }
}

impl From<Vec<KeyComponent>> for NestedKey {
    fn from(components: Vec<KeyComponent>) -> Self {
        NestedKey(components)
    }
}

impl From<&str> for NestedKey {
    fn from(name: &str) -> Self {
        NestedKey(vec![name.into()])
    }
}

impl From<String> for NestedKey {
    fn from(name: String) -> Self {
        NestedKey(vec![name.into()])
    }
}

impl<const N: usize> From<[&str; N]> for NestedKey {
    fn from(names: [&str; N]) -> Self {
        NestedKey(names.iter().map(|name| (*name).into()).collect())
    }
}

impl From<&NestedKey> for NestedKey {
    fn from(key: &NestedKey) -> Self {
        key.clone()
    }
}

/// A [`NestedKey`] of names and positions: `key!["encoder", 3, "bias"]` is `encoder[3].bias`.
#[macro_export]
macro_rules! key {
    ($($component:expr),* $(,)?) => {
        $crate::NestedKey::from(vec![$($crate::KeyComponent::from($component)),*])
    };
}
