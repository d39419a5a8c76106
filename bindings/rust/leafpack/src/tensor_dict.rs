//! Trees of tensors.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

use leafpack_sys as sys;

use crate::dtype::Element;
use crate::error::{assure_interface, check, slice_of, text_of, Error, Result};
use crate::key::NestedKey;
use crate::non_tensor::{NonTensor, RawValue};
use crate::tensor::{signed, Tensor, TensorMut, TensorRef};
use crate::work::RawWork;

/// A tree whose leaves are tensors or plain values.
///
/// It owns its tensors: a tensor or a tree that is set into it is moved there, so that memory has one
/// owner and Rust's borrows hold. `'a` is how long memory that it only borrows
/// ([`Tensor::from_slice`]) stays; a tree of owned memory is a `TensorDict<'static>`.
///
/// ```
/// # fn main() -> leafpack::Result<()> {
/// use leafpack::{key, Tensor, TensorDict};
///
/// let mut weight = [0.5f32; 6];                       // stays where it is
/// let mut tree = TensorDict::new();
/// tree.set(["encoder", "weight"], Tensor::from_slice(&mut weight, &[2, 3])?)?;
/// tree.set(key!["heads", 0, "bias"], Tensor::from_vec(vec![1.0f64, 2.0], &[2])?)?;
/// tree.set_non_tensor("epoch", 3)?;
///
/// tree.slice_mut::<f64>(key!["heads", 0, "bias"])?[1] = 7.0;
/// for leaf in tree.leaves()? {
///     println!("{}", leaf.path());                    // encoder.weight, epoch, heads[0].bias
/// }
/// assert_eq!(tree.slice::<f64>(key!["heads", 0, "bias"])?, [1.0, 7.0]);
/// # Ok(())
/// # }
/// ```
pub struct TensorDict<'a> {
    raw: NonNull<sys::leafpack_tree>,
    // Calls that were started on the leaves and whose TreeWork may be gone (mem::forget ends a borrow
    // that a destructor was meant to guard): memory is not given out before they are over.
    flights: Mutex<Vec<Flight>>,
    _memory: PhantomData<&'a mut [u8]>,
}

struct Flight {
    work: Arc<RawWork>,
    writes: bool,
}

// SAFETY: as of Tensor; & methods only read, which any number of threads may do.
unsafe impl Send for TensorDict<'_> {}
unsafe impl Sync for TensorDict<'_> {}

impl Drop for TensorDict<'_> {
    fn drop(&mut self) {
        // SAFETY: our own handle, freed once. A call in flight keeps its tree, whose memory is 'static.
        unsafe { sys::leafpack_tree_free(self.raw.as_ptr()) }
    }
}

impl Default for TensorDict<'_> {
    fn default() -> Self {
        TensorDict::new()
    }
}

/// The leaves, one a line.
impl fmt::Debug for TensorDict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layout().and_then(|layout| layout.text()) {
            Ok(text) => write!(f, "TensorDict {{\n{text}}}"),
            Err(error) => write!(f, "TensorDict {{ {error} }}"),
        }
    }
}

/// Calls a function that gives a tree.
///
/// # Safety
/// What `make` gives is a handle of ours, on memory that lives for `'a`.
pub(crate) unsafe fn made<'a>(
    make: impl FnOnce(*mut *mut sys::leafpack_tree) -> *mut sys::leafpack_error,
) -> Result<TensorDict<'a>> {
    assure_interface();
    let mut raw = ptr::null_mut();
    check(make(&mut raw))?;
    Ok(TensorDict {
        raw: NonNull::new(raw).expect("the library gave no tree"),
        flights: Mutex::new(Vec::new()),
        _memory: PhantomData,
    })
}

impl<'a> TensorDict<'a> {
    /// An empty tree without batch dimensions.
    pub fn new() -> Self {
        TensorDict::with_batch_size(&[]).expect("a tree without dimensions can be made")
    }

    /// An empty tree; `batch_size` is the leading dimensions that all its tensors must share.
    pub fn with_batch_size(batch_size: &[usize]) -> Result<Self> {
        let batch_size = signed(batch_size)?;
        // SAFETY: an empty tree has no memory.
        unsafe { made(|raw| sys::leafpack_tree_new(batch_size.as_ptr(), batch_size.len(), raw)) }
    }

    pub(crate) fn as_raw(&self) -> *mut sys::leafpack_tree {
        self.raw.as_ptr()
    }

    /// Remembers a call that was started on the leaves.
    pub(crate) fn add_flight(&self, work: Arc<RawWork>, writes: bool) {
        let mut flights = self.flights.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        flights.retain(|flight| !flight.work.is_done() || flight.work.has_failed_unseen());
        flights.push(Flight { work, writes });
    }

    /// Waits for calls that write the leaves, and, before they are to be written (`all`), for those that
    /// read them. While a TreeWork lives the borrow checker leaves nothing to wait for. The error is
    /// that of a call which nobody waited for.
    pub(crate) fn settle(&self, all: bool) -> Result<()> {
        let mut flights = self.flights.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut result = Ok(());
        flights.retain(|flight| {
            let waits = all || flight.writes;
            if waits && !flight.work.was_waited_for() {
                result = std::mem::replace(&mut result, Ok(())).and(flight.work.wait());
            }
            !waits
        });
        result
    }

    /// Puts a tensor at a path, in place of what was there. Nodes on the way are made.
    /// InvalidArgument, naming the path: it is empty, or goes through a leaf; the leading dimensions are
    /// not the batch size.
    pub fn set(&mut self, key: impl Into<NestedKey>, tensor: Tensor<'a>) -> Result<()> {
        self.settle(true)?;
        // SAFETY: as the header asks, as in the functions below.
        key.into().with_raw(|path, depth| unsafe {
            check(sys::leafpack_tree_set_tensor(self.as_raw(), path, depth, tensor.as_raw()))
        })
    }

    /// The same with a plain value.
    pub fn set_non_tensor(&mut self, key: impl Into<NestedKey>, value: impl Into<NonTensor>) -> Result<()> {
        self.settle(true)?;
        let value = RawValue::new(&value.into())?;
        key.into().with_raw(|path, depth| unsafe {
            check(sys::leafpack_tree_set_value(self.as_raw(), path, depth, value.as_ptr()))
        })
    }

    /// The same with a whole tree.
    pub fn set_tree(&mut self, key: impl Into<NestedKey>, tree: TensorDict<'a>) -> Result<()> {
        self.settle(true)?;
        tree.settle(true)?;
        key.into().with_raw(|path, depth| unsafe {
            check(sys::leafpack_tree_set_tree(self.as_raw(), path, depth, tree.as_raw()))
        })
    }

    fn tensor_at<'t>(&'t self, key: NestedKey) -> Result<Tensor<'t>> {
        let mut raw = ptr::null_mut();
        key.with_raw(|path, depth| unsafe {
            check(sys::leafpack_tree_get_tensor(self.as_raw(), path, depth, &mut raw))
        })?;
        // SAFETY: a handle of ours on memory that self keeps.
        Ok(unsafe { Tensor::from_raw(raw) })
    }

    /// The tensor at a path. NotFound names the first component that is missing, InvalidArgument says
    /// that something else stands there.
    pub fn get(&self, key: impl Into<NestedKey>) -> Result<TensorRef<'_>> {
        self.settle(false)?;
        Ok(TensorRef(self.tensor_at(key.into())?))
    }

    /// The same, to be written.
    pub fn get_mut(&mut self, key: impl Into<NestedKey>) -> Result<TensorMut<'_>> {
        self.settle(true)?;
        Ok(TensorMut(self.tensor_at(key.into())?))
    }

    /// The elements of the tensor at a path; errors as of `get` and [`Tensor::as_slice`].
    pub fn slice<T: Element>(&self, key: impl Into<NestedKey>) -> Result<&[T]> {
        self.get(key)?.as_slice()
    }

    /// The same, to be written.
    pub fn slice_mut<T: Element>(&mut self, key: impl Into<NestedKey>) -> Result<&mut [T]> {
        self.get_mut(key)?.into_mut_slice()
    }

    /// The plain value at a path.
    pub fn get_non_tensor(&self, key: impl Into<NestedKey>) -> Result<NonTensor> {
        key.into()
            .with_raw(|path, depth| {
                RawValue::made(|raw| unsafe { sys::leafpack_tree_get_value(self.as_raw(), path, depth, raw) })
            })?
            .get()
    }

    /// The node at a path.
    pub fn get_tree(&self, key: impl Into<NestedKey>) -> Result<TreeRef<'_>> {
        self.settle(false)?;
        // SAFETY: memory that self keeps.
        key.into().with_raw(|path, depth| unsafe {
            made(|raw| sys::leafpack_tree_get_tree(self.as_raw(), path, depth, raw)).map(TreeRef)
        })
    }

    /// Takes away what stands at a path.
    pub fn erase(&mut self, key: impl Into<NestedKey>) -> Result<()> {
        self.settle(true)?;
        key.into().with_raw(|path, depth| unsafe { check(sys::leafpack_tree_erase(self.as_raw(), path, depth)) })
    }

    /// Takes away all.
    pub fn clear(&mut self) -> Result<()> {
        self.settle(true)?;
        // SAFETY: as the header asks.
        unsafe { check(sys::leafpack_tree_clear(self.as_raw())) }
    }

    /// Whether a leaf or a node stands at a path.
    pub fn contains(&self, key: impl Into<NestedKey>) -> Result<bool> {
        let mut contains = 0;
        key.into().with_raw(|path, depth| unsafe {
            check(sys::leafpack_tree_contains(self.as_raw(), path, depth, &mut contains))
        })?;
        Ok(contains != 0)
    }

    /// The number of leaves of the whole tree, tensors or not.
    pub fn num_leaves(&self) -> Result<usize> {
        let mut num_leaves = 0;
        // SAFETY: as the header asks.
        unsafe { check(sys::leafpack_tree_num_leaves(self.as_raw(), &mut num_leaves))? };
        Ok(num_leaves)
    }

    /// All leaves in canonical order: by path, component by component; positions before names, names by
    /// their bytes.
    pub fn leaves(&self) -> Result<Leaves<'_>> {
        self.settle(false)?;
        // SAFETY: as the header asks.
        let entries = Entries::of(|raw| unsafe { sys::leafpack_tree_leaves(self.as_raw(), raw) })?;
        Ok(Leaves { entries: Arc::new(entries), next: 0, _tree: PhantomData })
    }

    /// What stands directly below the tree, leaves and nodes, in the same order.
    pub fn children(&self) -> Result<Leaves<'_>> {
        self.settle(false)?;
        // SAFETY: as the header asks.
        let entries = Entries::of(|raw| unsafe { sys::leafpack_tree_children(self.as_raw(), raw) })?;
        Ok(Leaves { entries: Arc::new(entries), next: 0, _tree: PhantomData })
    }

    /// The tensors among the leaves, to be written, each with its path. InvalidArgument if two of them
    /// share memory, which only trees that came from other ranks do: take those one by one.
    pub fn leaves_mut(&mut self) -> Result<LeavesMut<'_>> {
        self.settle(true)?;
        // SAFETY: as the header asks.
        let entries = Entries::of(|raw| unsafe { sys::leafpack_tree_leaves(self.as_raw(), raw) })?;
        let mut leaves = Vec::new();
        let mut taken = Vec::new();
        for index in 0..entries.size()? {
            if entries.kind(index)? != sys::LEAFPACK_ENTRY_TENSOR {
                continue;
            }
            // SAFETY: memory that self keeps.
            let tensor: Tensor<'_> = unsafe { Tensor::from_raw(entries.tensor(index)?) };
            // What is no slice cannot be had as one.
            if let Ok((start, bytes @ 1..)) = tensor.memory() {
                taken.push((start as usize, bytes, index));
            }
            leaves.push((entries.path_text(index)?, TensorMut(tensor)));
        }
        taken.sort_unstable();
        for pair in taken.windows(2) {
            if pair[0].0 + pair[0].1 > pair[1].0 {
                return Err(Error::invalid_argument(format!(
                    "{} and {} share memory",
                    entries.path_text(pair[0].2)?,
                    entries.path_text(pair[1].2)?
                )));
            }
        }
        Ok(LeavesMut(leaves.into_iter()))
    }

    /// Paths, shapes and dtypes: what ranks compare before data moves. InvalidArgument, with the path,
    /// when leaves overlap in part.
    pub fn layout(&self) -> Result<Layout> {
        let mut raw = ptr::null_mut();
        // SAFETY: as the header asks.
        unsafe { check(sys::leafpack_layout_of(self.as_raw(), &mut raw))? };
        Ok(Layout { raw: NonNull::new(raw).expect("the library gave no layout") })
    }
}

/// A node of a tree that is borrowed for `'t`.
#[derive(Debug)]
pub struct TreeRef<'t>(TensorDict<'t>);

impl<'t> Deref for TreeRef<'t> {
    type Target = TensorDict<'t>;
    fn deref(&self) -> &TensorDict<'t> {
        &self.0
    }
}

/// A snapshot of a tree's leaves, or of its children, in the library.
struct Entries(NonNull<sys::leafpack_entries>);

impl Drop for Entries {
    fn drop(&mut self) {
        // SAFETY: our own handle, freed once.
        unsafe { sys::leafpack_entries_free(self.0.as_ptr()) }
    }
}

// SAFETY, of all below: the handle lives, and what it lends is copied.
impl Entries {
    fn of(get: impl FnOnce(*mut *mut sys::leafpack_entries) -> *mut sys::leafpack_error) -> Result<Entries> {
        let mut raw = ptr::null_mut();
        check(get(&mut raw))?;
        Ok(Entries(NonNull::new(raw).expect("the library gave no leaves")))
    }

    fn size(&self) -> Result<usize> {
        let mut size = 0;
        unsafe { check(sys::leafpack_entries_size(self.0.as_ptr(), &mut size))? };
        Ok(size)
    }

    fn kind(&self, index: usize) -> Result<i32> {
        let mut kind = 0;
        unsafe { check(sys::leafpack_entries_kind(self.0.as_ptr(), index, &mut kind))? };
        Ok(kind)
    }

    fn path_text(&self, index: usize) -> Result<String> {
        let mut text = ptr::null();
        unsafe {
            check(sys::leafpack_entries_path_text(self.0.as_ptr(), index, &mut text))?;
            Ok(text_of(text))
        }
    }

    fn key(&self, index: usize) -> Result<NestedKey> {
        let (mut path, mut depth) = (ptr::null(), 0);
        unsafe {
            check(sys::leafpack_entries_path(self.0.as_ptr(), index, &mut path, &mut depth))?;
            Ok(NestedKey::from_raw(path, depth))
        }
    }

    fn tensor(&self, index: usize) -> Result<*mut sys::leafpack_tensor> {
        let mut raw = ptr::null_mut();
        unsafe { check(sys::leafpack_entries_tensor(self.0.as_ptr(), index, &mut raw))? };
        Ok(raw)
    }
}

/// An iterator over the leaves of a tree, or over its children.
pub struct Leaves<'t> {
    entries: Arc<Entries>,
    next: usize,
    _tree: PhantomData<&'t ()>,
}

impl<'t> Iterator for Leaves<'t> {
    type Item = Leaf<'t>;

    fn next(&mut self) -> Option<Leaf<'t>> {
        // What is below the size has a path and a kind.
        let path = self.entries.path_text(self.next).ok()?;
        let leaf = Leaf { entries: Arc::clone(&self.entries), index: self.next, path, _tree: PhantomData };
        self.next += 1;
        Some(leaf)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.entries.size().unwrap_or(self.next) - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Leaves<'_> {}

/// One leaf, or one node, of a tree that is borrowed for `'t`.
pub struct Leaf<'t> {
    entries: Arc<Entries>,
    index: usize,
    path: String,
    _tree: PhantomData<&'t ()>,
}

impl<'t> Leaf<'t> {
    /// The path as errors print it: `encoder[3].bias`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The path by its components.
    pub fn key(&self) -> Result<NestedKey> {
        self.entries.key(self.index)
    }

    pub fn is_tensor(&self) -> bool {
        matches!(self.entries.kind(self.index), Ok(sys::LEAFPACK_ENTRY_TENSOR))
    }

    /// A node, which only [`TensorDict::children`] gives.
    pub fn is_tree(&self) -> bool {
        matches!(self.entries.kind(self.index), Ok(sys::LEAFPACK_ENTRY_TREE))
    }

    /// InvalidArgument if this is no node.
    pub fn tree(&self) -> Result<TreeRef<'t>> {
        // SAFETY: a handle of ours; the tree that is borrowed keeps the memory for 't.
        unsafe { made(|raw| sys::leafpack_entries_tree(self.entries.0.as_ptr(), self.index, raw)).map(TreeRef) }
    }

    /// InvalidArgument if this is no tensor.
    pub fn tensor(&self) -> Result<TensorRef<'t>> {
        // SAFETY: a handle of ours; the tree keeps the memory for 't.
        Ok(TensorRef(unsafe { Tensor::from_raw(self.entries.tensor(self.index)?) }))
    }

    /// As [`Tensor::as_slice`].
    pub fn as_slice<T: Element>(&self) -> Result<&'t [T]> {
        self.tensor()?.as_slice()
    }

    /// InvalidArgument if this is no plain value.
    pub fn non_tensor(&self) -> Result<NonTensor> {
        // SAFETY: as the header asks.
        RawValue::made(|raw| unsafe { sys::leafpack_entries_value(self.entries.0.as_ptr(), self.index, raw) })?.get()
    }
}

/// An iterator over the tensors of a tree, to be written: path and tensor.
pub struct LeavesMut<'t>(std::vec::IntoIter<(String, TensorMut<'t>)>);

impl<'t> Iterator for LeavesMut<'t> {
    type Item = (String, TensorMut<'t>);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for LeavesMut<'_> {}

/// All about the leaves of a tree but the elements of its tensors.
pub struct Layout {
    raw: NonNull<sys::leafpack_layout>,
}

// SAFETY: layouts never change, and many threads may use one.
unsafe impl Send for Layout {}
unsafe impl Sync for Layout {}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: our own handle, freed once.
        unsafe { sys::leafpack_layout_free(self.raw.as_ptr()) }
    }
}

impl Layout {
    /// 128 bits, equal on all platforms for equal layouts.
    pub fn digest(&self) -> Result<u128> {
        let (mut low, mut high) = (0, 0);
        // SAFETY: as the header asks, as in the functions below.
        unsafe { check(sys::leafpack_layout_digest(self.raw.as_ptr(), &mut low, &mut high))? };
        Ok(u128::from(high) << 64 | u128::from(low))
    }

    /// One line per leaf, `encoder.bias: float32 [4] cpu`.
    pub fn text(&self) -> Result<String> {
        let mut text = ptr::null();
        unsafe {
            check(sys::leafpack_layout_text(self.raw.as_ptr(), &mut text))?;
            Ok(text_of(text))
        }
    }

    /// Bytes of the dense leaves.
    pub fn num_bytes(&self) -> Result<i64> {
        let mut num_bytes = 0;
        unsafe { check(sys::leafpack_layout_num_bytes(self.raw.as_ptr(), &mut num_bytes))? };
        Ok(num_bytes)
    }
}

impl TensorDict<'_> {
    /// The leading dimensions that all tensors share.
    pub fn batch_size(&self) -> Result<Vec<i64>> {
        let (mut batch_dims, mut batch_size) = (0, ptr::null());
        // SAFETY: what the handle lends is copied.
        unsafe {
            check(sys::leafpack_tree_batch_size(self.as_raw(), &mut batch_dims, &mut batch_size))?;
            Ok(slice_of(batch_size, batch_dims).to_vec())
        }
    }

    /// Changes them. InvalidArgument, naming the path, if a tensor has others.
    pub fn set_batch_size(&mut self, batch_size: &[usize]) -> Result<()> {
        self.settle(true)?;
        let batch_size = signed(batch_size)?;
        // SAFETY: as the header asks.
        unsafe { check(sys::leafpack_tree_set_batch_size(self.as_raw(), batch_size.as_ptr(), batch_size.len())) }
    }
}
