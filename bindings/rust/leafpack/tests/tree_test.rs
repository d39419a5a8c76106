//! Trees and tensors in one process.

use leafpack::*;
use std::sync::atomic::{AtomicUsize, Ordering};

fn tree_of(values: Vec<f32>) -> TensorDict<'static> {
    let mut tree = TensorDict::new();
    let sizes = [values.len()];
    tree.set("x", Tensor::from_vec(values, &sizes).unwrap()).unwrap();
    tree
}

/// As std::mem::forget, in a place where a leak checker finds it.
fn forget<T>(value: T) {
    static KEPT: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());
    KEPT.lock().unwrap().push(Box::into_raw(Box::new(value)) as usize);
}

fn one_rank() -> Group {
    Group::local(1, &GroupOptions::default()).unwrap().remove(0)
}

#[test]
fn leaves_come_in_canonical_order_with_their_elements() {
    let mut tree = TensorDict::new();
    tree.set(["b", "x"], Tensor::from_vec(vec![1i64, 2], &[2]).unwrap()).unwrap();
    tree.set_non_tensor("a", "text").unwrap();
    tree.set(key!["b", 10], Tensor::from_vec(vec![true, false], &[2]).unwrap()).unwrap();
    tree.set(key!["b", 9], Tensor::zeros(DType::Complex64, &[2, 0]).unwrap()).unwrap();

    let leaves = tree.leaves().unwrap();
    assert_eq!(leaves.len(), 4);
    let paths: Vec<String> = leaves.map(|leaf| leaf.path().to_string()).collect();
    assert_eq!(paths, ["a", "b[9]", "b[10]", "b.x"]);
    let keys: Vec<NestedKey> = tree.leaves().unwrap().map(|leaf| leaf.key().unwrap()).collect();
    assert_eq!(keys, [key!["a"], key!["b", 9], key!["b", 10], key!["b", "x"]]);

    assert_eq!(tree.slice::<bool>(key!["b", 10]).unwrap(), [true, false]);
    assert_eq!(tree.slice::<i64>(["b", "x"]).unwrap(), [1, 2]);
    assert_eq!(tree.get(key!["b", 9]).unwrap().sizes(), [2, 0]);
    assert_eq!(tree.get_non_tensor("a").unwrap(), NonTensor::from("text"));
    assert_eq!(tree.get_tree("b").unwrap().num_leaves().unwrap(), 3);
    assert_eq!(tree.num_leaves().unwrap(), 4);

    tree.erase("b").unwrap();
    assert!(!tree.contains("b").unwrap());
    assert_eq!(tree.num_leaves().unwrap(), 1);
}

#[test]
fn children_are_leaves_and_nodes() {
    let mut tree = TensorDict::new();
    tree.set(["b", "x"], Tensor::from_vec(vec![1i64, 2], &[2]).unwrap()).unwrap();
    tree.set_non_tensor("a", "text").unwrap();
    tree.set("c", Tensor::from_vec(vec![3u8], &[1]).unwrap()).unwrap();

    let children: Vec<Leaf<'_>> = tree.children().unwrap().collect();
    let paths: Vec<&str> = children.iter().map(|child| child.path()).collect();
    assert_eq!(paths, ["a", "b", "c"]);
    assert_eq!(children.iter().map(|child| child.is_tree()).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(children[0].non_tensor().unwrap(), NonTensor::from("text"));
    assert_eq!(children[1].tree().unwrap().slice::<i64>("x").unwrap(), [1, 2]);
    assert_eq!(children[2].as_slice::<u8>().unwrap(), [3]);
    assert_eq!(children[0].tree().unwrap_err().code(), ErrorCode::InvalidArgument);
    assert_eq!(children[1].tensor().unwrap_err().code(), ErrorCode::InvalidArgument);

    tree.clear().unwrap();
    assert_eq!(tree.children().unwrap().len(), 0);
    assert_eq!(tree.num_leaves().unwrap(), 0);
}

#[test]
fn memory_stays_where_it_is_and_is_released_once() {
    let mut numbers = [1.0f32, 2.0, 3.0];
    let address = numbers.as_ptr();
    {
        let mut tree = TensorDict::new();
        tree.set("x", Tensor::from_slice(&mut numbers, &[3]).unwrap()).unwrap();
        assert_eq!(tree.slice::<f32>("x").unwrap().as_ptr(), address);
        tree.slice_mut::<f32>("x").unwrap()[1] = 7.0;
    }
    assert_eq!(numbers, [1.0, 7.0, 3.0]);

    let vector = vec![4u8; 5];
    let address = vector.as_ptr();
    let tensor = Tensor::from_vec(vector, &[5]).unwrap();
    assert_eq!(tensor.as_slice::<u8>().unwrap().as_ptr(), address);
}

#[test]
fn a_slice_has_the_right_type_and_no_gaps() {
    let tensor = Tensor::from_vec(vec![1.0f32; 6], &[2, 3]).unwrap();
    let error = tensor.as_slice::<f64>().unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert_eq!(error.message(), "a tensor of float32 is no slice of float64");

    assert!(Tensor::from_vec(vec![1.0f32; 6], &[2, 2]).is_err());
    assert!(Tensor::from_vec(vec![1.0f32; 6], &[usize::MAX, 2]).is_err());
    assert!(Tensor::undefined().unwrap().as_slice::<f32>().is_err());
    assert_eq!(Tensor::from_vec(Vec::<i16>::new(), &[0, 3]).unwrap().as_slice::<i16>().unwrap(), []);

    // A transposed view, as DLPack can bring one.
    let strided = Managed::new(vec![0.0f32, 1.0, 2.0, 3.0], vec![2, 2], vec![1, 2]);
    let tensor = unsafe { Tensor::from_dlpack(strided.take()) }.unwrap();
    assert_eq!(tensor.strides(), Some(&[1, 2][..]));
    let error = tensor.as_slice::<f32>().unwrap_err();
    assert!(error.message().contains("another order than row-major"), "{error}");
}

#[test]
fn a_bool_is_0_or_1() {
    let mut foreign = Managed::new(vec![1u8, 2], vec![2], vec![1]);
    foreign.set_dtype(6, 8); // kDLBool
    let tensor = unsafe { Tensor::from_dlpack(foreign.take()) }.unwrap();
    assert_eq!(tensor.dtype(), Some(DType::Bool));
    assert!(tensor.as_slice::<bool>().is_err());
    assert_eq!(tensor.as_bytes().unwrap(), [1, 2]);
}

/// Two bools as no Rust program makes them.
fn foreign_bools() -> TensorDict<'static> {
    let mut foreign = Managed::new(vec![2u8, 255], vec![2], vec![1]);
    foreign.set_dtype(6, 8);
    let mut tree = TensorDict::new();
    tree.set("x", unsafe { Tensor::from_dlpack(foreign.take()) }.unwrap()).unwrap();
    tree
}

#[test]
fn bools_that_a_peer_sends_are_bytes_until_they_are_looked_at() {
    let mut groups = Group::local(2, &GroupOptions::default()).unwrap();
    let (peer, group) = (groups.pop().unwrap(), groups.pop().unwrap());
    let sender = std::thread::spawn(move || {
        broadcast(&mut foreign_bools(), 1, &peer, &CallOptions::default()).unwrap();
        send(&foreign_bools(), 0, &peer, &TransferOptions::default()).unwrap();
    });
    for into in [0, 1] {
        let mut mine = [1u8, 0];
        let mut tree = TensorDict::new();
        tree.set("x", Tensor::bools_from_slice(&mut mine, &[2]).unwrap()).unwrap();
        assert_eq!(tree.slice::<bool>("x").unwrap(), [true, false]);
        if into == 0 {
            broadcast(&mut tree, 1, &group, &CallOptions::default()).unwrap();
        } else {
            recv_into(&mut tree, Some(1), &group, &TransferOptions::default()).unwrap();
        }
        assert!(tree.slice::<bool>("x").is_err());
        assert!(tree.slice_mut::<bool>("x").is_err());
        assert_eq!(tree.get("x").unwrap().as_bytes().unwrap(), [2, 255]);
        drop(tree);
        assert_eq!(mine, [2, 255]);
        assert!(Tensor::bools_from_slice(&mut mine, &[2]).is_err());
    }
    sender.join().unwrap();
}

#[test]
fn views_have_strides_and_stay_inside_of_their_memory() {
    let mut data = [0i32, 1, 2, 3, 4, 5, 6, 7];
    let mut tree = TensorDict::new();
    tree.set("even", Tensor::from_slice_strided(&mut data, &[2, 2], &[4, 2]).unwrap()).unwrap();
    tree.set("column", Tensor::from_vec_strided(vec![1.0f32, 9.0, 2.0], &[2], &[2]).unwrap()).unwrap();
    assert_eq!(tree.get("even").unwrap().strides(), Some(&[4, 2][..]));
    assert!(tree.slice::<i32>("even").is_err());
    let tripled = AllReduceOptions::with_op(ReduceOp::PremulSum(3.0));
    let floats = AllReduceOptions { leaves: LeafFilter::Floating, ..tripled };
    all_reduce(&mut tree, &one_rank(), &floats).unwrap();
    let column = tree.get("column").unwrap().to_dlpack().unwrap().into_raw();
    let memory = unsafe { std::slice::from_raw_parts((*column).dl_tensor.data as *const f32, 3) };
    assert_eq!(memory, [3.0, 9.0, 6.0]); // the element between stays
    drop(unsafe { Tensor::from_dlpack(column) }.unwrap());
    all_reduce(&mut tree, &one_rank(), &AllReduceOptions::with_op(ReduceOp::Max)).unwrap();
    drop(tree);
    assert_eq!(data, [0, 1, 2, 3, 4, 5, 6, 7]);

    let fails = |sizes: &[usize], strides: &[usize]| Tensor::from_vec_strided(vec![0u8; 8], sizes, strides).is_err();
    assert!(!fails(&[2, 4], &[4, 1]));
    assert!(!fails(&[], &[]));
    assert!(!fails(&[0], &[usize::MAX / 2]));
    assert!(fails(&[2, 4], &[5, 1]));
    assert!(fails(&[2], &[1, 1]));
    assert!(fails(&[9], &[1]));
    assert!(fails(&[3], &[usize::MAX / 2]));
    assert!(fails(&[usize::MAX], &[usize::MAX]));
    assert!(Tensor::from_vec_strided(Vec::<u8>::new(), &[], &[]).is_err());
}

#[test]
fn tensors_tell_what_they_are() {
    let mut tensor = Tensor::zeros(DType::Complex64, &[2]).unwrap();
    assert_eq!((tensor.kind(), tensor.element_size(), tensor.dtype()), (TensorKind::Dense, 8, Some(DType::Complex64)));
    assert_eq!(tensor.device(), Some(Device { device_type: 1, index: 0 }));
    tensor.as_mut_bytes().unwrap()[..4].copy_from_slice(&1.5f32.to_ne_bytes());
    assert_eq!(tensor.as_bytes().unwrap()[..4], 1.5f32.to_ne_bytes());
    assert!(Tensor::from_vec(vec![true], &[1]).unwrap().as_mut_bytes().is_err());

    let nothing = Tensor::undefined().unwrap();
    assert_eq!((nothing.kind(), nothing.element_size(), nothing.dtype()), (TensorKind::Undefined, 0, None));
    assert_eq!(nothing.device(), None);
    assert!(nothing.to_dlpack_versioned().is_err());
    assert_eq!((DType::BFloat16.size(), DType::Complex128.size()), (2, 16));
}

static DELETED: AtomicUsize = AtomicUsize::new(0);

/// A tensor as another library might give it.
struct Managed<T> {
    managed: Box<leafpack_sys::DLManagedTensor>,
    _parts: std::marker::PhantomData<T>,
}

struct Parts<T> {
    data: Vec<T>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl<T: Element> Managed<T> {
    fn new(data: Vec<T>, shape: Vec<i64>, strides: Vec<i64>) -> Self {
        let mut parts = Box::new(Parts { data, shape, strides });
        let (code, bits) = match T::DTYPE {
            DType::Float32 => (2, 32),
            DType::UInt8 => (1, 8),
            _ => unreachable!(),
        };
        let dl_tensor = leafpack_sys::DLTensor {
            data: parts.data.as_mut_ptr().cast(),
            device: leafpack_sys::DLDevice { device_type: 1, device_id: 0 },
            ndim: parts.shape.len() as i32,
            dtype: leafpack_sys::DLDataType { code, bits, lanes: 1 },
            shape: parts.shape.as_mut_ptr(),
            strides: parts.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        unsafe extern "C" fn delete<T>(managed: *mut leafpack_sys::DLManagedTensor) {
            DELETED.fetch_add(1, Ordering::SeqCst);
            let managed = Box::from_raw(managed);
            drop(Box::from_raw(managed.manager_ctx as *mut Parts<T>));
        }
        let managed = Box::new(leafpack_sys::DLManagedTensor {
            dl_tensor,
            manager_ctx: Box::into_raw(parts).cast(),
            deleter: Some(delete::<T>),
        });
        Managed { managed, _parts: std::marker::PhantomData }
    }

    fn set_dtype(&mut self, code: u8, bits: u8) {
        self.managed.dl_tensor.dtype.code = code;
        self.managed.dl_tensor.dtype.bits = bits;
    }

    fn take(self) -> *mut leafpack_sys::DLManagedTensor {
        Box::into_raw(self.managed)
    }
}

#[test]
fn dlpack_goes_both_ways_without_a_copy() {
    let tree = tree_of(vec![1.0, 2.0, 3.0]);
    let tensor = tree.get("x").unwrap();
    let pack = tensor.to_dlpack().unwrap();
    let lent = unsafe { &(*pack.as_ptr()).dl_tensor };
    assert_eq!(lent.data as *const f32, tensor.as_slice::<f32>().unwrap().as_ptr());
    assert_eq!(unsafe { *lent.shape }, 3);

    // Given away, it outlives the tree.
    let raw = pack.into_raw();
    drop(tensor);
    drop(tree);
    let back = unsafe { Tensor::from_dlpack(raw) }.unwrap();
    assert_eq!(back.as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0]);

    let before = DELETED.load(Ordering::SeqCst);
    let theirs = Managed::new(vec![5.0f32], vec![1], vec![1]);
    drop(unsafe { Tensor::from_dlpack(theirs.take()) }.unwrap());
    assert!(DELETED.load(Ordering::SeqCst) > before);
}

#[test]
fn dlpack_1_goes_both_ways_and_refuses_what_may_only_be_read() {
    let tensor = Tensor::from_vec(vec![1.0f32, 2.0], &[2]).unwrap();
    let pack = tensor.to_dlpack_versioned().unwrap();
    assert_eq!(unsafe { (*pack.as_ptr()).version.major }, 1);
    let raw = pack.into_raw();
    unsafe { (*raw).flags |= 1 };
    let error = unsafe { Tensor::from_dlpack_versioned(raw) }.unwrap_err();
    assert!(error.message().contains("may only be read"), "{error}");
    unsafe { (*raw).flags &= !1 };
    let address = tensor.as_slice::<f32>().unwrap().as_ptr();
    drop(tensor);
    let back = unsafe { Tensor::from_dlpack_versioned(raw) }.unwrap();
    assert_eq!(back.as_slice::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(back.as_slice::<f32>().unwrap().as_ptr(), address);
    drop(back.to_dlpack_versioned().unwrap()); // calls the deleter
    assert!(live_handles() > 0);
}

#[test]
fn stores_hold_bytes() {
    let store = Store::memory(None).unwrap();
    store.set(b"k\0y", [0u8, 255]).unwrap();
    assert_eq!(store.get(b"k\0y").unwrap(), [0, 255]);
    store.set("", "").unwrap();
    assert_eq!(store.get("").unwrap(), b"");
    assert_eq!(store.add("n", 40).unwrap() + store.add("n", 2).unwrap(), 82);
    assert_eq!(store.compare_set("n", "41", "0").unwrap(), b"42");
    assert_eq!(store.compare_set("n", "42", "0").unwrap(), b"0");
    let prefixed = store.with_prefix("p").unwrap();
    prefixed.set("x", "y").unwrap();
    assert!(store.has("p/x").unwrap() && !store.has("x").unwrap());
    assert_eq!(store.num_keys().unwrap(), 4);
    assert!(store.remove("p/x").unwrap() && !store.remove("p/x").unwrap());
    assert_eq!(store.port().unwrap(), 0);

    let error = store.wait("never", Some(std::time::Duration::from_millis(20))).unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeadlineExceeded);
    let other = store.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| other.set("late", "1").unwrap());
        assert_eq!(store.get("late").unwrap(), b"1");
    });

    let folder = std::env::var("TEST_TMPDIR").map_or_else(|_| std::env::temp_dir(), Into::into);
    let path = folder.join(format!("leafpack_store_{}", std::process::id()));
    Store::file(&path, None).unwrap().set("k", "v").unwrap();
    assert_eq!(Store::file(&path, None).unwrap().get("k").unwrap(), b"v");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn errors_carry_code_and_path() {
    let mut tree = tree_of(vec![1.0]);
    let error = tree.get(["y", "z"]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    assert!(error.message().contains('y'), "{error}");
    let error = tree.set(["x", "below"], Tensor::undefined().unwrap()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert!(tree.get_tree("x").is_err());
    assert!(tree.slice::<f32>("x").is_ok());
    let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
    assert!(boxed.to_string().starts_with("InvalidArgument: "));
}

#[test]
fn plain_values_of_every_kind() {
    let list = NonTensor::List(vec![
        NonTensor::None,
        true.into(),
        (-3).into(),
        0.5.into(),
        "t\u{e4}xt \0".into(),
        vec![0u8, 255].into(),
        NonTensor::List(vec![]),
    ]);
    let mut tree = TensorDict::new();
    tree.set_non_tensor("list", list.clone()).unwrap();
    assert_eq!(tree.get_non_tensor("list").unwrap(), list);
    let leaf = tree.leaves().unwrap().next().unwrap();
    assert!(!leaf.is_tensor());
    assert_eq!(leaf.non_tensor().unwrap(), list);
    assert!(leaf.tensor().is_err());
}

#[test]
fn all_leaves_can_be_written_at_once() {
    let mut tree = tree_of(vec![1.0, 2.0]);
    tree.set("y", Tensor::from_vec(vec![3.0f32], &[1]).unwrap()).unwrap();
    tree.set_non_tensor("text", "t").unwrap();
    let leaves: Vec<_> = tree.leaves_mut().unwrap().collect();
    let slices: Vec<&mut [f32]> = leaves.into_iter().map(|(_, leaf)| leaf.into_mut_slice().unwrap()).collect();
    for slice in slices {
        slice[0] += 10.0;
    }
    assert_eq!(tree.slice::<f32>("x").unwrap(), [11.0, 2.0]);
    assert_eq!(tree.slice::<f32>("y").unwrap(), [13.0]);
}

#[test]
fn layouts_of_equal_trees_are_equal() {
    let layout = tree_of(vec![1.0, 2.0]).layout().unwrap();
    assert_eq!(layout.digest().unwrap(), tree_of(vec![5.0, 6.0]).layout().unwrap().digest().unwrap());
    assert_ne!(layout.digest().unwrap(), tree_of(vec![5.0]).layout().unwrap().digest().unwrap());
    assert_eq!(layout.text().unwrap(), "x: float32 [2] cpu\n");
    assert_eq!(layout.num_bytes().unwrap(), 8);
}

#[test]
fn batch_sizes_are_checked() {
    let mut tree = TensorDict::with_batch_size(&[2]).unwrap();
    assert_eq!(tree.batch_size().unwrap(), [2]);
    assert!(tree.set("x", Tensor::zeros(DType::Float32, &[2, 5]).unwrap()).is_ok());
    assert!(tree.set("y", Tensor::zeros(DType::Float32, &[3, 5]).unwrap()).is_err());
}

#[test]
fn a_batch_size_can_be_changed_to_what_all_tensors_have() {
    let mut tree = TensorDict::new();
    tree.set("x", Tensor::from_vec(vec![0.0f32; 6], &[3, 2]).unwrap()).unwrap();
    tree.set_batch_size(&[3]).unwrap();
    assert_eq!(tree.batch_size().unwrap(), [3]);
    let error = tree.set_batch_size(&[2]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert!(error.message().contains("the shape of x is [3, 2]"), "{error}");
    assert_eq!(tree.batch_size().unwrap(), [3]);
}

#[test]
fn a_forgotten_work_is_waited_for_by_the_tree() {
    let groups = Group::local(2, &GroupOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for group in groups {
            scope.spawn(move || {
                let mut tree = tree_of(vec![1.0; 100_000]);
                forget(all_reduce_async(&mut tree, &group, &AllReduceOptions::default()).unwrap());
                if group.rank() == 1 {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
                assert!(tree.slice::<f32>("x").unwrap().iter().all(|value| *value == 2.0));
            });
        }
    });
}

#[test]
fn the_error_of_a_forgotten_work_comes_with_the_next_use() {
    let groups = Group::local(2, &GroupOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for group in groups {
            scope.spawn(move || {
                let mut tree = tree_of(vec![1.0; 1 + group.rank() as usize]);
                drop(all_reduce_async(&mut tree, &group, &AllReduceOptions::default()).unwrap());
                let error = tree.slice_mut::<f32>("x").unwrap_err();
                assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
                assert_eq!(tree.slice::<f32>("x").unwrap()[0], 1.0);
            });
        }
    });
}

#[test]
fn a_panic_of_a_closure_comes_out_of_the_call() {
    let group = one_rank();
    let mut tree = tree_of(vec![1.0]);
    let takes = |path: &str| -> bool { panic!("asked about {path}") };
    let options = AllReduceOptions { leaves: LeafFilter::Chosen(&takes), ..Default::default() };
    let call = std::panic::AssertUnwindSafe(|| all_reduce(&mut tree, &group, &options));
    let panic = std::panic::catch_unwind(call).unwrap_err();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), "asked about x");
    // The group still works.
    all_reduce(&mut tree, &group, &AllReduceOptions::default()).unwrap();
}

#[test]
fn a_timeout_of_nothing_is_refused() {
    let options = CallOptions { timeout: Some(std::time::Duration::ZERO), ..Default::default() };
    assert_eq!(barrier(&one_rank(), &options).unwrap_err().code(), ErrorCode::InvalidArgument);
}

#[test]
fn what_may_cross_threads() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<TensorDict<'static>>();
    sync::<TensorDict<'static>>();
    send::<Tensor<'static>>();
    sync::<Tensor<'static>>();
    send::<TreeWork<'static, Vec<TensorDict<'static>>>>();
    sync::<TreeWork<'static>>();
    send::<Layout>();
    send::<Store>();
    sync::<Store>();
    sync::<Error>();
    send::<Group>(); // and not Sync: compile_fail
}

#[test]
fn more_ranks_than_there_can_be_threads_are_refused_at_once() {
    for size in [-1, 0, 4097, 1 << 20, i32::MAX] {
        let error = Group::local(size, &GroupOptions::default()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error}");
        assert!(error.message().contains(&size.to_string()), "{error}");
    }
}
