// Declarations of leafpack.h. Made by bindings/rust/generate.py; do not edit.
pub const LEAFPACK_VERSION_MAJOR: i32 = 0;
pub const LEAFPACK_VERSION_MINOR: i32 = 1;
pub const LEAFPACK_VERSION_PATCH: i32 = 0;
pub const LEAFPACK_ABI_VERSION: i32 = 1;
pub const LEAFPACK_TO_ZERO: usize = usize::MAX;
pub const LEAFPACK_NO_COLOR: i32 = i32::MIN;
pub const LEAFPACK_ANY_RANK: i32 = -1;
pub const LEAFPACK_NO_TIMEOUT: i32 = -1;

pub const LEAFPACK_LOG_INFO: i32 = 0;
pub const LEAFPACK_LOG_WARNING: i32 = 1;
pub const LEAFPACK_LOG_ERROR: i32 = 2;

pub const LEAFPACK_OK: i32 = 0;
pub const LEAFPACK_CANCELLED: i32 = 1;
pub const LEAFPACK_UNKNOWN: i32 = 2;
pub const LEAFPACK_INVALID_ARGUMENT: i32 = 3;
pub const LEAFPACK_DEADLINE_EXCEEDED: i32 = 4;
pub const LEAFPACK_NOT_FOUND: i32 = 5;
pub const LEAFPACK_ALREADY_EXISTS: i32 = 6;
pub const LEAFPACK_RESOURCE_EXHAUSTED: i32 = 8;
pub const LEAFPACK_FAILED_PRECONDITION: i32 = 9;
pub const LEAFPACK_ABORTED: i32 = 10;
pub const LEAFPACK_OUT_OF_RANGE: i32 = 11;
pub const LEAFPACK_UNIMPLEMENTED: i32 = 12;
pub const LEAFPACK_INTERNAL: i32 = 13;
pub const LEAFPACK_UNAVAILABLE: i32 = 14;

pub const LEAFPACK_KIND_OTHER: i32 = 0;
pub const LEAFPACK_KIND_LAYOUT_MISMATCH: i32 = 1;
pub const LEAFPACK_KIND_PEER_REFUSED: i32 = 2;
pub const LEAFPACK_KIND_UNSUPPORTED: i32 = 3;
pub const LEAFPACK_KIND_DEADLINE: i32 = 4;
pub const LEAFPACK_KIND_INTERRUPTED: i32 = 5;
pub const LEAFPACK_KIND_PEER_LOST: i32 = 6;

pub const LEAFPACK_UINT8: i32 = 0;
pub const LEAFPACK_INT8: i32 = 1;
pub const LEAFPACK_INT16: i32 = 2;
pub const LEAFPACK_INT32: i32 = 3;
pub const LEAFPACK_INT64: i32 = 4;
pub const LEAFPACK_FLOAT16: i32 = 5;
pub const LEAFPACK_FLOAT32: i32 = 6;
pub const LEAFPACK_FLOAT64: i32 = 7;
pub const LEAFPACK_COMPLEX32: i32 = 8;
pub const LEAFPACK_COMPLEX64: i32 = 9;
pub const LEAFPACK_COMPLEX128: i32 = 10;
pub const LEAFPACK_BOOL: i32 = 11;
pub const LEAFPACK_BFLOAT16: i32 = 15;
pub const LEAFPACK_FLOAT8_E5M2: i32 = 23;
pub const LEAFPACK_FLOAT8_E4M3FN: i32 = 24;
pub const LEAFPACK_FLOAT8_E5M2FNUZ: i32 = 25;
pub const LEAFPACK_FLOAT8_E4M3FNUZ: i32 = 26;
pub const LEAFPACK_UINT16: i32 = 27;
pub const LEAFPACK_UINT32: i32 = 28;
pub const LEAFPACK_UINT64: i32 = 29;
pub const LEAFPACK_FLOAT8_E8M0FNU: i32 = 44;
pub const LEAFPACK_NO_DTYPE: i32 = 255;

pub const LEAFPACK_DENSE: i32 = 0;
pub const LEAFPACK_SPARSE: i32 = 1;
pub const LEAFPACK_UNDEFINED: i32 = 2;

pub const LEAFPACK_VALUE_NONE: i32 = 0;
pub const LEAFPACK_VALUE_STRING: i32 = 1;
pub const LEAFPACK_VALUE_INT: i32 = 2;
pub const LEAFPACK_VALUE_FLOAT: i32 = 3;
pub const LEAFPACK_VALUE_BOOL: i32 = 4;
pub const LEAFPACK_VALUE_BYTES: i32 = 5;
pub const LEAFPACK_VALUE_LIST: i32 = 6;

pub const LEAFPACK_NAME: i32 = 1;
pub const LEAFPACK_POSITION: i32 = 2;

pub const LEAFPACK_ENTRY_TENSOR: i32 = 1;
pub const LEAFPACK_ENTRY_VALUE: i32 = 2;
pub const LEAFPACK_ENTRY_TREE: i32 = 3;

pub const LEAFPACK_SUM: i32 = 0;
pub const LEAFPACK_AVG: i32 = 1;
pub const LEAFPACK_PRODUCT: i32 = 2;
pub const LEAFPACK_MIN: i32 = 3;
pub const LEAFPACK_MAX: i32 = 4;
pub const LEAFPACK_BAND: i32 = 5;
pub const LEAFPACK_BOR: i32 = 6;
pub const LEAFPACK_BXOR: i32 = 7;
pub const LEAFPACK_PREMUL_SUM: i32 = 8;

pub const LEAFPACK_REPORT: i32 = 0;
pub const LEAFPACK_RESTORE: i32 = 1;

pub const LEAFPACK_AUTO: i32 = 0;
pub const LEAFPACK_PER_LEAF: i32 = 1;
pub const LEAFPACK_MAX_BYTES: i32 = 2;

pub const LEAFPACK_ALL_LEAVES: i32 = 0;
pub const LEAFPACK_FLOATING_LEAVES: i32 = 1;
pub const LEAFPACK_CHOSEN_LEAVES: i32 = 2;

pub const LEAFPACK_ALWAYS: i32 = 0;
pub const LEAFPACK_FIRST: i32 = 1;
pub const LEAFPACK_OFF: i32 = 2;

pub const LEAFPACK_STACK: i32 = 0;
pub const LEAFPACK_CONCAT: i32 = 1;

#[repr(C)]
pub struct leafpack_error {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct leafpack_tensor {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct leafpack_value {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct leafpack_tree {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct leafpack_entries {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct leafpack_layout {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct leafpack_store {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct leafpack_group {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct leafpack_work {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct leafpack_result {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct leafpack_buffer {
    pub struct_size: usize,
    pub data: *mut c_void,
    pub dtype: i32,
    pub reserved: i32,
    pub num_dims: usize,
    pub sizes: *const i64,
    pub strides: *const i64,
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
    pub context: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct leafpack_tensor_info {
    pub struct_size: usize,
    pub data: *mut c_void,
    pub dtype: i32,
    pub kind: i32,
    pub device_type: i32,
    pub device_index: i32,
    pub num_dims: usize,
    pub sizes: *const i64,
    pub strides: *const i64,
    pub num_elements: i64,
    pub element_size: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct leafpack_component {
    pub kind: i32,
    pub reserved: i32,
    pub name: *const c_char,
    pub name_size: usize,
    pub position: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct leafpack_group_options {
    pub struct_size: usize,
    pub backend: *const c_char,
    pub timeout_ms: i64,
    pub interface_name: *const c_char,
    pub interrupt: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    pub interrupt_context: *mut c_void,
    pub refusal: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct leafpack_stats {
    pub struct_size: usize,
    pub prepare: f64,
    pub agree: f64,
    pub pack: f64,
    pub communicate: f64,
    pub unpack: f64,
    pub total: f64,
    pub leaves: i64,
    pub skipped: i64,
    pub bytes: i64,
    pub messages: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct leafpack_call_options {
    pub struct_size: usize,
    pub timeout_ms: i64,
    pub name: *const c_char,
    pub on_failure: i32,
    pub check: i32,
    pub max_in_flight_bytes: i64,
    pub interrupt: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    pub interrupt_context: *mut c_void,
    pub stats: *mut leafpack_stats,
    pub refusal: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct leafpack_reduce_options {
    pub struct_size: usize,
    pub timeout_ms: i64,
    pub name: *const c_char,
    pub on_failure: i32,
    pub check: i32,
    pub max_in_flight_bytes: i64,
    pub interrupt: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    pub interrupt_context: *mut c_void,
    pub stats: *mut leafpack_stats,
    pub op: i32,
    pub bucketing: i32,
    pub factor: f64,
    pub bucket_bytes: i64,
    pub leaves: i32,
    pub reserved: i32,
    pub takes_leaf: Option<unsafe extern "C" fn(context: *mut c_void, path_text: *const c_char, path: *const leafpack_component, depth: usize) -> i32>,
    pub takes_leaf_context: *mut c_void,
    pub refusal: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct leafpack_transfer_options {
    pub struct_size: usize,
    pub tag: i64,
    pub timeout_ms: i64,
    pub name: *const c_char,
    pub max_bytes: i64,
    pub interrupt: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    pub interrupt_context: *mut c_void,
}

extern "C" {
    pub fn leafpack_version() -> *const c_char;
    pub fn leafpack_version_number() -> i32;
    pub fn leafpack_abi_version() -> i32;
    pub fn leafpack_torch_version() -> *const c_char;
    pub fn leafpack_live_handles() -> i64;
    pub fn leafpack_set_log(log: Option<unsafe extern "C" fn(context: *mut c_void, severity: i32, file: *const c_char, line: i32, message: *const c_char)>, context: *mut c_void) -> *mut leafpack_error;
    pub fn leafpack_error_code(error: *const leafpack_error) -> i32;
    pub fn leafpack_error_kind(error: *const leafpack_error) -> i32;
    pub fn leafpack_error_message(error: *const leafpack_error) -> *const c_char;
    pub fn leafpack_error_path(error: *const leafpack_error) -> *const c_char;
    pub fn leafpack_error_ranks(error: *const leafpack_error, ranks: *mut *const i32) -> usize;
    pub fn leafpack_error_num_paths_done(error: *const leafpack_error) -> usize;
    pub fn leafpack_error_path_done(error: *const leafpack_error, index: usize) -> *const c_char;
    pub fn leafpack_error_tree_unchanged(error: *const leafpack_error) -> i32;
    pub fn leafpack_error_outcome_unknown(error: *const leafpack_error) -> i32;
    pub fn leafpack_error_free(error: *mut leafpack_error);
    pub fn leafpack_dtype_name(dtype: i32) -> *const c_char;
    pub fn leafpack_dtype_size(dtype: i32) -> usize;
    pub fn leafpack_tensor_from_buffer(buffer: *const leafpack_buffer, tensor: *mut *mut leafpack_tensor) -> *mut leafpack_error;
    pub fn leafpack_tensor_zeros(dtype: i32, num_dims: usize, sizes: *const i64, tensor: *mut *mut leafpack_tensor) -> *mut leafpack_error;
    pub fn leafpack_tensor_undefined(tensor: *mut *mut leafpack_tensor) -> *mut leafpack_error;
    pub fn leafpack_tensor_from_dlpack(managed: *mut DLManagedTensor, tensor: *mut *mut leafpack_tensor) -> *mut leafpack_error;
    pub fn leafpack_tensor_from_dlpack_versioned(managed: *mut DLManagedTensorVersioned, tensor: *mut *mut leafpack_tensor) -> *mut leafpack_error;
    pub fn leafpack_tensor_to_dlpack(tensor: *const leafpack_tensor, managed: *mut *mut DLManagedTensor) -> *mut leafpack_error;
    pub fn leafpack_tensor_to_dlpack_versioned(tensor: *const leafpack_tensor, managed: *mut *mut DLManagedTensorVersioned) -> *mut leafpack_error;
    pub fn leafpack_tensor_get_info(tensor: *const leafpack_tensor, info: *mut leafpack_tensor_info) -> *mut leafpack_error;
    pub fn leafpack_tensor_free(tensor: *mut leafpack_tensor);
    pub fn leafpack_value_none(value: *mut *mut leafpack_value) -> *mut leafpack_error;
    pub fn leafpack_value_string(text: *const c_char, size: usize, value: *mut *mut leafpack_value) -> *mut leafpack_error;
    pub fn leafpack_value_int(number: i64, value: *mut *mut leafpack_value) -> *mut leafpack_error;
    pub fn leafpack_value_float(number: f64, value: *mut *mut leafpack_value) -> *mut leafpack_error;
    pub fn leafpack_value_bool(truth: i32, value: *mut *mut leafpack_value) -> *mut leafpack_error;
    pub fn leafpack_value_bytes(data: *const c_void, size: usize, value: *mut *mut leafpack_value) -> *mut leafpack_error;
    pub fn leafpack_value_list(items: *const *const leafpack_value, count: usize, value: *mut *mut leafpack_value) -> *mut leafpack_error;
    pub fn leafpack_value_kind(value: *const leafpack_value, kind: *mut i32) -> *mut leafpack_error;
    pub fn leafpack_value_get_int(value: *const leafpack_value, number: *mut i64) -> *mut leafpack_error;
    pub fn leafpack_value_get_float(value: *const leafpack_value, number: *mut f64) -> *mut leafpack_error;
    pub fn leafpack_value_get_bool(value: *const leafpack_value, truth: *mut i32) -> *mut leafpack_error;
    pub fn leafpack_value_get_text(value: *const leafpack_value, text: *mut *const c_char, size: *mut usize) -> *mut leafpack_error;
    pub fn leafpack_value_get_size(value: *const leafpack_value, size: *mut usize) -> *mut leafpack_error;
    pub fn leafpack_value_get_item(value: *const leafpack_value, index: usize, item: *mut *mut leafpack_value) -> *mut leafpack_error;
    pub fn leafpack_value_free(value: *mut leafpack_value);
    pub fn leafpack_tree_new(batch_size: *const i64, batch_dims: usize, tree: *mut *mut leafpack_tree) -> *mut leafpack_error;
    pub fn leafpack_tree_free(tree: *mut leafpack_tree);
    pub fn leafpack_tree_set_tensor(tree: *mut leafpack_tree, path: *const leafpack_component, depth: usize, tensor: *const leafpack_tensor) -> *mut leafpack_error;
    pub fn leafpack_tree_set_value(tree: *mut leafpack_tree, path: *const leafpack_component, depth: usize, value: *const leafpack_value) -> *mut leafpack_error;
    pub fn leafpack_tree_set_tree(tree: *mut leafpack_tree, path: *const leafpack_component, depth: usize, subtree: *const leafpack_tree) -> *mut leafpack_error;
    pub fn leafpack_tree_get_tensor(tree: *const leafpack_tree, path: *const leafpack_component, depth: usize, tensor: *mut *mut leafpack_tensor) -> *mut leafpack_error;
    pub fn leafpack_tree_get_value(tree: *const leafpack_tree, path: *const leafpack_component, depth: usize, value: *mut *mut leafpack_value) -> *mut leafpack_error;
    pub fn leafpack_tree_get_tree(tree: *const leafpack_tree, path: *const leafpack_component, depth: usize, subtree: *mut *mut leafpack_tree) -> *mut leafpack_error;
    pub fn leafpack_tree_erase(tree: *mut leafpack_tree, path: *const leafpack_component, depth: usize) -> *mut leafpack_error;
    pub fn leafpack_tree_clear(tree: *mut leafpack_tree) -> *mut leafpack_error;
    pub fn leafpack_tree_contains(tree: *const leafpack_tree, path: *const leafpack_component, depth: usize, contains: *mut i32) -> *mut leafpack_error;
    pub fn leafpack_tree_num_leaves(tree: *const leafpack_tree, num_leaves: *mut usize) -> *mut leafpack_error;
    pub fn leafpack_tree_batch_size(tree: *const leafpack_tree, batch_dims: *mut usize, batch_size: *mut *const i64) -> *mut leafpack_error;
    pub fn leafpack_tree_set_batch_size(tree: *mut leafpack_tree, batch_size: *const i64, batch_dims: usize) -> *mut leafpack_error;
    pub fn leafpack_tree_leaves(tree: *const leafpack_tree, entries: *mut *mut leafpack_entries) -> *mut leafpack_error;
    pub fn leafpack_tree_children(tree: *const leafpack_tree, entries: *mut *mut leafpack_entries) -> *mut leafpack_error;
    pub fn leafpack_entries_size(entries: *const leafpack_entries, size: *mut usize) -> *mut leafpack_error;
    pub fn leafpack_entries_kind(entries: *const leafpack_entries, index: usize, kind: *mut i32) -> *mut leafpack_error;
    pub fn leafpack_entries_path(entries: *const leafpack_entries, index: usize, path: *mut *const leafpack_component, depth: *mut usize) -> *mut leafpack_error;
    pub fn leafpack_entries_path_text(entries: *const leafpack_entries, index: usize, text: *mut *const c_char) -> *mut leafpack_error;
    pub fn leafpack_entries_tensor(entries: *const leafpack_entries, index: usize, tensor: *mut *mut leafpack_tensor) -> *mut leafpack_error;
    pub fn leafpack_entries_value(entries: *const leafpack_entries, index: usize, value: *mut *mut leafpack_value) -> *mut leafpack_error;
    pub fn leafpack_entries_tree(entries: *const leafpack_entries, index: usize, tree: *mut *mut leafpack_tree) -> *mut leafpack_error;
    pub fn leafpack_entries_free(entries: *mut leafpack_entries);
    pub fn leafpack_layout_of(tree: *const leafpack_tree, layout: *mut *mut leafpack_layout) -> *mut leafpack_error;
    pub fn leafpack_layout_digest(layout: *const leafpack_layout, low: *mut u64, high: *mut u64) -> *mut leafpack_error;
    pub fn leafpack_layout_text(layout: *const leafpack_layout, text: *mut *const c_char) -> *mut leafpack_error;
    pub fn leafpack_layout_num_bytes(layout: *const leafpack_layout, num_bytes: *mut i64) -> *mut leafpack_error;
    pub fn leafpack_layout_free(layout: *mut leafpack_layout);
    pub fn leafpack_store_tcp(host: *const c_char, port: i32, serves: i32, timeout_ms: i64, store: *mut *mut leafpack_store) -> *mut leafpack_error;
    pub fn leafpack_store_file(path: *const c_char, timeout_ms: i64, store: *mut *mut leafpack_store) -> *mut leafpack_error;
    pub fn leafpack_store_memory(timeout_ms: i64, store: *mut *mut leafpack_store) -> *mut leafpack_error;
    pub fn leafpack_store_with_prefix(store: *const leafpack_store, prefix: *const c_char, prefixed: *mut *mut leafpack_store) -> *mut leafpack_error;
    pub fn leafpack_store_clone(store: *const leafpack_store, clone: *mut *mut leafpack_store) -> *mut leafpack_error;
    pub fn leafpack_store_set(store: *const leafpack_store, key: *const c_char, key_size: usize, value: *const c_void, size: usize) -> *mut leafpack_error;
    pub fn leafpack_store_get(store: *const leafpack_store, key: *const c_char, key_size: usize, value: *mut *mut leafpack_value) -> *mut leafpack_error;
    pub fn leafpack_store_add(store: *const leafpack_store, key: *const c_char, key_size: usize, amount: i64, sum: *mut i64) -> *mut leafpack_error;
    pub fn leafpack_store_compare_set(store: *const leafpack_store, key: *const c_char, key_size: usize, expected: *const c_void, expected_size: usize, desired: *const c_void, desired_size: usize, value: *mut *mut leafpack_value) -> *mut leafpack_error;
    pub fn leafpack_store_has(store: *const leafpack_store, key: *const c_char, key_size: usize, there: *mut i32) -> *mut leafpack_error;
    pub fn leafpack_store_wait(store: *const leafpack_store, key: *const c_char, key_size: usize, timeout_ms: i64) -> *mut leafpack_error;
    pub fn leafpack_store_remove(store: *const leafpack_store, key: *const c_char, key_size: usize, was_there: *mut i32) -> *mut leafpack_error;
    pub fn leafpack_store_num_keys(store: *const leafpack_store, num_keys: *mut i64) -> *mut leafpack_error;
    pub fn leafpack_store_port(store: *const leafpack_store, port: *mut i32) -> *mut leafpack_error;
    pub fn leafpack_store_free(store: *mut leafpack_store);
    pub fn leafpack_group_from_environment(options: *const leafpack_group_options, group: *mut *mut leafpack_group) -> *mut leafpack_error;
    pub fn leafpack_group_from_file(path: *const c_char, rank: i32, size: i32, options: *const leafpack_group_options, group: *mut *mut leafpack_group) -> *mut leafpack_error;
    pub fn leafpack_group_from_url(url: *const c_char, rank: i32, size: i32, options: *const leafpack_group_options, group: *mut *mut leafpack_group) -> *mut leafpack_error;
    pub fn leafpack_group_from_store(store: *const leafpack_store, prefix: *const c_char, rank: i32, size: i32, global_ranks: *const i32, options: *const leafpack_group_options, group: *mut *mut leafpack_group) -> *mut leafpack_error;
    pub fn leafpack_groups_in_process(size: i32, options: *const leafpack_group_options, groups: *mut *mut leafpack_group) -> *mut leafpack_error;
    pub fn leafpack_group_of_ranks(parent: *const leafpack_group, ranks: *const i32, num_ranks: usize, name: *const c_char, options: *const leafpack_group_options, group: *mut *mut leafpack_group) -> *mut leafpack_error;
    pub fn leafpack_group_split(parent: *const leafpack_group, color: i32, key: i32, options: *const leafpack_group_options, group: *mut *mut leafpack_group) -> *mut leafpack_error;
    pub fn leafpack_group_rank(group: *const leafpack_group, rank: *mut i32) -> *mut leafpack_error;
    pub fn leafpack_group_size(group: *const leafpack_group, size: *mut i32) -> *mut leafpack_error;
    pub fn leafpack_group_global_rank(group: *const leafpack_group, rank: *mut i32) -> *mut leafpack_error;
    pub fn leafpack_group_to_global(group: *const leafpack_group, group_rank: i32, global_rank: *mut i32) -> *mut leafpack_error;
    pub fn leafpack_group_to_group(group: *const leafpack_group, global_rank: i32, group_rank: *mut i32) -> *mut leafpack_error;
    pub fn leafpack_group_shutdown(group: *mut leafpack_group, timeout_ms: i64) -> *mut leafpack_error;
    pub fn leafpack_group_free(group: *mut leafpack_group);
    pub fn leafpack_all_reduce(tree: *const leafpack_tree, group: *const leafpack_group, options: *const leafpack_reduce_options) -> *mut leafpack_error;
    pub fn leafpack_all_reduce_async(tree: *const leafpack_tree, group: *const leafpack_group, options: *const leafpack_reduce_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_reduce(tree: *const leafpack_tree, root: i32, group: *const leafpack_group, options: *const leafpack_reduce_options) -> *mut leafpack_error;
    pub fn leafpack_reduce_async(tree: *const leafpack_tree, root: i32, group: *const leafpack_group, options: *const leafpack_reduce_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_reduce_scatter(trees: *const *const leafpack_tree, num_trees: usize, group: *const leafpack_group, options: *const leafpack_reduce_options) -> *mut leafpack_error;
    pub fn leafpack_reduce_scatter_async(trees: *const *const leafpack_tree, num_trees: usize, group: *const leafpack_group, options: *const leafpack_reduce_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_broadcast(tree: *const leafpack_tree, root: i32, group: *const leafpack_group, options: *const leafpack_call_options, result: *mut *mut leafpack_result) -> *mut leafpack_error;
    pub fn leafpack_broadcast_async(tree: *const leafpack_tree, root: i32, group: *const leafpack_group, options: *const leafpack_call_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_all_gather(tree: *const leafpack_tree, group: *const leafpack_group, options: *const leafpack_call_options, result: *mut *mut leafpack_result) -> *mut leafpack_error;
    pub fn leafpack_all_gather_async(tree: *const leafpack_tree, group: *const leafpack_group, options: *const leafpack_call_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_all_gather_joined(tree: *const leafpack_tree, joining: i32, into: *const leafpack_tree, group: *const leafpack_group, options: *const leafpack_call_options, result: *mut *mut leafpack_result) -> *mut leafpack_error;
    pub fn leafpack_all_gather_joined_async(tree: *const leafpack_tree, joining: i32, into: *const leafpack_tree, group: *const leafpack_group, options: *const leafpack_call_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_gather(tree: *const leafpack_tree, root: i32, group: *const leafpack_group, options: *const leafpack_call_options, result: *mut *mut leafpack_result) -> *mut leafpack_error;
    pub fn leafpack_gather_async(tree: *const leafpack_tree, root: i32, group: *const leafpack_group, options: *const leafpack_call_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_gather_and_stack(tree: *const leafpack_tree, root: i32, group: *const leafpack_group, options: *const leafpack_call_options, result: *mut *mut leafpack_result) -> *mut leafpack_error;
    pub fn leafpack_gather_and_stack_async(tree: *const leafpack_tree, root: i32, group: *const leafpack_group, options: *const leafpack_call_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_scatter(tree: *const leafpack_tree, trees: *const *const leafpack_tree, num_trees: usize, root: i32, group: *const leafpack_group, options: *const leafpack_call_options, result: *mut *mut leafpack_result) -> *mut leafpack_error;
    pub fn leafpack_scatter_async(tree: *const leafpack_tree, trees: *const *const leafpack_tree, num_trees: usize, root: i32, group: *const leafpack_group, options: *const leafpack_call_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_all_to_all(trees: *const *const leafpack_tree, num_trees: usize, group: *const leafpack_group, options: *const leafpack_call_options, result: *mut *mut leafpack_result) -> *mut leafpack_error;
    pub fn leafpack_all_to_all_async(trees: *const *const leafpack_tree, num_trees: usize, group: *const leafpack_group, options: *const leafpack_call_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_barrier(group: *const leafpack_group, options: *const leafpack_call_options) -> *mut leafpack_error;
    pub fn leafpack_broadcast_bytes(data: *const c_void, size: usize, root: i32, group: *const leafpack_group, options: *const leafpack_call_options, result: *mut *mut leafpack_result) -> *mut leafpack_error;
    pub fn leafpack_broadcast_bytes_async(data: *const c_void, size: usize, root: i32, group: *const leafpack_group, options: *const leafpack_call_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_all_gather_bytes(data: *const c_void, size: usize, group: *const leafpack_group, options: *const leafpack_call_options, result: *mut *mut leafpack_result) -> *mut leafpack_error;
    pub fn leafpack_all_gather_bytes_async(data: *const c_void, size: usize, group: *const leafpack_group, options: *const leafpack_call_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_gather_bytes(data: *const c_void, size: usize, root: i32, group: *const leafpack_group, options: *const leafpack_call_options, result: *mut *mut leafpack_result) -> *mut leafpack_error;
    pub fn leafpack_gather_bytes_async(data: *const c_void, size: usize, root: i32, group: *const leafpack_group, options: *const leafpack_call_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_scatter_bytes(data: *const *const c_void, sizes: *const usize, count: usize, root: i32, group: *const leafpack_group, options: *const leafpack_call_options, result: *mut *mut leafpack_result) -> *mut leafpack_error;
    pub fn leafpack_scatter_bytes_async(data: *const *const c_void, sizes: *const usize, count: usize, root: i32, group: *const leafpack_group, options: *const leafpack_call_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_send(tree: *const leafpack_tree, to: i32, group: *const leafpack_group, options: *const leafpack_transfer_options) -> *mut leafpack_error;
    pub fn leafpack_isend(tree: *const leafpack_tree, to: i32, group: *const leafpack_group, options: *const leafpack_transfer_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_recv(tree: *const leafpack_tree, from: i32, group: *const leafpack_group, options: *const leafpack_transfer_options, result: *mut *mut leafpack_result) -> *mut leafpack_error;
    pub fn leafpack_irecv(tree: *const leafpack_tree, from: i32, group: *const leafpack_group, options: *const leafpack_transfer_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_send_bytes(data: *const c_void, size: usize, to: i32, group: *const leafpack_group, options: *const leafpack_transfer_options) -> *mut leafpack_error;
    pub fn leafpack_isend_bytes(data: *const c_void, size: usize, to: i32, group: *const leafpack_group, options: *const leafpack_transfer_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_recv_bytes(from: i32, group: *const leafpack_group, options: *const leafpack_transfer_options, result: *mut *mut leafpack_result) -> *mut leafpack_error;
    pub fn leafpack_irecv_bytes(from: i32, group: *const leafpack_group, options: *const leafpack_transfer_options, work: *mut *mut leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_work_wait(work: *const leafpack_work, timeout_ms: i64) -> *mut leafpack_error;
    pub fn leafpack_work_is_done(work: *const leafpack_work, done: *mut i32) -> *mut leafpack_error;
    pub fn leafpack_work_cancel(work: *const leafpack_work) -> *mut leafpack_error;
    pub fn leafpack_work_result(work: *const leafpack_work, result: *mut *mut leafpack_result) -> *mut leafpack_error;
    pub fn leafpack_work_stats(work: *const leafpack_work, stats: *mut leafpack_stats) -> *mut leafpack_error;
    pub fn leafpack_work_free(work: *mut leafpack_work);
    pub fn leafpack_result_num_trees(result: *const leafpack_result, num_trees: *mut usize) -> *mut leafpack_error;
    pub fn leafpack_result_tree(result: *const leafpack_result, index: usize, tree: *mut *mut leafpack_tree) -> *mut leafpack_error;
    pub fn leafpack_result_num_strings(result: *const leafpack_result, num_strings: *mut usize) -> *mut leafpack_error;
    pub fn leafpack_result_string(result: *const leafpack_result, index: usize, data: *mut *const c_void, size: *mut usize) -> *mut leafpack_error;
    pub fn leafpack_result_source(result: *const leafpack_result, rank: *mut i32) -> *mut leafpack_error;
    pub fn leafpack_result_free(result: *mut leafpack_result);
}
