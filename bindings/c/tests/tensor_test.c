/* Tensors: plain buffers and DLPack, in and out, with nothing copied and everything released once. */
#include <ATen/dlpack.h>

#include "bindings/c/tests/check.h"

static void count_release(void* context) { ++*(int*)context; }

static void buffers(void) {
  float data[12];
  int released = 0;
  for (int i = 0; i < 12; ++i) data[i] = (float)i;
  const int64_t sizes[] = {2, 3};
  const int64_t strides[] = {6, 2}; /* every second element */
  leafpack_buffer buffer = LEAFPACK_BUFFER_INIT;
  buffer.data = data;
  buffer.num_dims = 2;
  buffer.sizes = sizes;
  buffer.strides = strides;
  buffer.release = count_release;
  buffer.context = &released;
  leafpack_tensor* tensor = NULL;
  OK(leafpack_tensor_from_buffer(&buffer, &tensor));
  leafpack_tensor_info info = LEAFPACK_TENSOR_INFO_INIT;
  OK(leafpack_tensor_get_info(tensor, &info));
  CHECK(info.data == data);
  CHECK_INT(info.strides[0], 6);
  CHECK_INT(info.strides[1], 2);
  CHECK_INT(info.num_elements, 6);

  /* A leaf keeps to itself: the elements between those of the view stay. */
  leafpack_group* alone = NULL;
  OK(leafpack_groups_in_process(1, NULL, &alone));
  leafpack_tree* tree = new_tree();
  const leafpack_component path[] = {LEAFPACK_BY_NAME("view")};
  OK(leafpack_tree_set_tensor(tree, path, 1, tensor));
  leafpack_tensor_free(tensor);
  leafpack_reduce_options options = LEAFPACK_REDUCE_OPTIONS_INIT;
  options.op = LEAFPACK_PREMUL_SUM;
  options.factor = 10;
  OK(leafpack_all_reduce(tree, alone, &options));
  for (int i = 0; i < 12; ++i) CHECK(data[i] == (float)(i % 2 == 0 ? 10 * i : i));
  CHECK_INT(released, 0);
  leafpack_tree_free(tree);
  CHECK_INT(released, 1);
  leafpack_group_free(alone);

  /* No elements, no data: still released. */
  const int64_t nothing[] = {0};
  buffer.data = NULL;
  buffer.num_dims = 1;
  buffer.sizes = nothing;
  buffer.strides = NULL;
  OK(leafpack_tensor_from_buffer(&buffer, &tensor));
  leafpack_tensor_free(tensor);
  CHECK_INT(released, 2);
  /* No release: the memory is the caller's to watch. No dimension: one element. */
  buffer.release = NULL;
  buffer.data = data;
  buffer.num_dims = 0;
  buffer.sizes = NULL;
  OK(leafpack_tensor_from_buffer(&buffer, &tensor));
  OK(leafpack_tensor_get_info(tensor, &info));
  CHECK_INT(info.num_elements, 1);
  CHECK_INT(info.num_dims, 0);
  leafpack_tensor_free(tensor);
  check_no_leaks();
}

static void wrong_buffers(void) {
  double data[8] = {0};
  int released = 0;
  const int64_t sizes[] = {4, 2};
  const int64_t negative[] = {4, -2};
  const int64_t huge[] = {INT64_MAX, INT64_MAX};
  leafpack_buffer good = LEAFPACK_BUFFER_INIT;
  good.data = data;
  good.dtype = LEAFPACK_FLOAT64;
  good.num_dims = 2;
  good.sizes = sizes;
  good.release = count_release;
  good.context = &released;
  leafpack_tensor* tensor = NULL;

  leafpack_buffer bad = good;
  bad.struct_size = 0;
  REFUSED(leafpack_tensor_from_buffer(&bad, &tensor), "struct_size 0");
  bad = good;
  bad.struct_size = (size_t)1 << 40;
  REFUSED(leafpack_tensor_from_buffer(&bad, &tensor), "struct_size");
  bad = good;
  bad.dtype = 77;
  REFUSED(leafpack_tensor_from_buffer(&bad, &tensor), "77");
  bad = good;
  bad.dtype = -1;
  REFUSED(leafpack_tensor_from_buffer(&bad, &tensor), "-1");
  bad = good;
  bad.sizes = NULL;
  REFUSED(leafpack_tensor_from_buffer(&bad, &tensor), "sizes is NULL");
  bad = good;
  bad.sizes = negative;
  REFUSED(leafpack_tensor_from_buffer(&bad, &tensor), "-2");
  bad = good;
  bad.sizes = huge;
  REFUSED(leafpack_tensor_from_buffer(&bad, &tensor), "too many");
  bad = good;
  bad.strides = negative;
  REFUSED(leafpack_tensor_from_buffer(&bad, &tensor), "stride -2");
  bad = good;
  bad.strides = huge;
  REFUSED(leafpack_tensor_from_buffer(&bad, &tensor), "strides");
  bad = good;
  bad.num_dims = 65;
  REFUSED(leafpack_tensor_from_buffer(&bad, &tensor), "65");
  bad = good;
  bad.data = NULL;
  REFUSED(leafpack_tensor_from_buffer(&bad, &tensor), "NULL");
  bad = good;
  bad.data = (char*)data + 4;
  REFUSED(leafpack_tensor_from_buffer(&bad, &tensor), "aligned");
  bad = good;
  bad.reserved = 1;
  REFUSED(leafpack_tensor_from_buffer(&bad, &tensor), "reserved");
  REFUSED(leafpack_tensor_from_buffer(NULL, &tensor), "buffer is NULL");
  REFUSED(leafpack_tensor_from_buffer(&good, NULL), "tensor is NULL");
  REFUSED(leafpack_tensor_zeros(LEAFPACK_FLOAT32, 1, negative + 1, &tensor), "-2");
  REFUSED(leafpack_tensor_zeros(1000, 0, NULL, &tensor), "1000");
  CHECK(tensor == NULL);
  CHECK_INT(released, 0); /* the memory stayed the caller's */
  check_no_leaks();
}

/* A larger struct of a later version: what this library does not know must be zero. */
static void later_versions(void) {
  struct {
    leafpack_buffer buffer;
    int64_t added;
  } later;
  float data[1] = {0};
  memset(&later, 0, sizeof(later));
  later.buffer.struct_size = sizeof(later);
  later.buffer.data = data;
  later.buffer.dtype = LEAFPACK_FLOAT32;
  leafpack_tensor* tensor = NULL;
  OK(leafpack_tensor_from_buffer(&later.buffer, &tensor));
  struct {
    leafpack_tensor_info info;
    int64_t added;
  } filled = {LEAFPACK_TENSOR_INFO_INIT, 42};
  filled.info.struct_size = sizeof(filled);
  OK(leafpack_tensor_get_info(tensor, &filled.info));
  CHECK_INT(filled.added, 42);
  CHECK_INT(filled.info.struct_size, sizeof(filled));
  CHECK(filled.info.data == data);
  filled.info.struct_size = 8;
  REFUSED(leafpack_tensor_get_info(tensor, &filled.info), "struct_size 8");
  leafpack_tensor_free(tensor);
  later.added = 1;
  REFUSED(leafpack_tensor_from_buffer(&later.buffer, &tensor), "does not know");
  check_no_leaks();
}

static void dtypes(void) {
  CHECK_TEXT(leafpack_dtype_name(LEAFPACK_FLOAT32), "float32");
  CHECK_TEXT(leafpack_dtype_name(LEAFPACK_FLOAT8_E8M0FNU), "float8_e8m0fnu");
  CHECK_TEXT(leafpack_dtype_name(LEAFPACK_UINT64), "uint64");
  CHECK_TEXT(leafpack_dtype_name(-5), "undefined");
  CHECK_TEXT(leafpack_dtype_name(LEAFPACK_NO_DTYPE), "undefined");
  CHECK_INT(leafpack_dtype_size(LEAFPACK_COMPLEX128), 16);
  CHECK_INT(leafpack_dtype_size(12), 0);
  leafpack_tensor* tensor = NULL;
  OK(leafpack_tensor_zeros(LEAFPACK_BFLOAT16, 0, NULL, &tensor));
  leafpack_tensor_info info = LEAFPACK_TENSOR_INFO_INIT;
  OK(leafpack_tensor_get_info(tensor, &info));
  CHECK_INT(info.dtype, LEAFPACK_BFLOAT16);
  CHECK_INT(*(uint16_t*)info.data, 0);
  leafpack_tensor_free(tensor);
}

static void undefined(void) {
  leafpack_tensor* tensor = NULL;
  leafpack_tensor_info info = LEAFPACK_TENSOR_INFO_INIT;
  struct DLManagedTensor* managed = NULL;
  OK(leafpack_tensor_undefined(&tensor));
  OK(leafpack_tensor_get_info(tensor, &info));
  CHECK_INT(info.kind, LEAFPACK_UNDEFINED);
  CHECK_INT(info.dtype, LEAFPACK_NO_DTYPE);
  CHECK(info.data == NULL && info.sizes == NULL);
  REFUSED(leafpack_tensor_to_dlpack(tensor, &managed), "undefined");
  leafpack_tree* tree = new_tree();
  const leafpack_component path[] = {LEAFPACK_BY_NAME("gradient")};
  OK(leafpack_tree_set_tensor(tree, path, 1, tensor));
  leafpack_tensor_free(tensor);
  leafpack_tree_free(tree);
  check_no_leaks();
}

static int deleted;
static void delete_managed(DLManagedTensor* self) {
  (void)self;
  ++deleted;
}
static void delete_versioned(DLManagedTensorVersioned* self) {
  (void)self;
  ++deleted;
}

static void dlpack_in(void) {
  float data[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  int64_t sizes[] = {2, 2};
  int64_t strides[] = {4, 1};
  DLManagedTensor managed;
  memset(&managed, 0, sizeof(managed));
  managed.dl_tensor.data = data;
  managed.dl_tensor.device.device_type = kDLCPU;
  managed.dl_tensor.ndim = 2;
  managed.dl_tensor.dtype.code = kDLFloat;
  managed.dl_tensor.dtype.bits = 32;
  managed.dl_tensor.dtype.lanes = 1;
  managed.dl_tensor.shape = sizes;
  managed.dl_tensor.strides = strides;
  managed.dl_tensor.byte_offset = 8;
  managed.deleter = delete_managed;
  leafpack_tensor* tensor = NULL;
  leafpack_tensor_info info = LEAFPACK_TENSOR_INFO_INIT;
  deleted = 0;
  OK(leafpack_tensor_from_dlpack(&managed, &tensor));
  OK(leafpack_tensor_get_info(tensor, &info));
  CHECK(info.data == data + 2);
  CHECK_INT(info.dtype, LEAFPACK_FLOAT32);
  CHECK_INT(info.strides[0], 4);
  leafpack_tensor_free(tensor);
  CHECK_INT(deleted, 1);

  /* Without strides: row-major. Without a deleter: nobody to tell. */
  managed.dl_tensor.strides = NULL;
  managed.deleter = NULL;
  OK(leafpack_tensor_from_dlpack(&managed, &tensor));
  OK(leafpack_tensor_get_info(tensor, &info));
  CHECK_INT(info.strides[0], 2);
  leafpack_tensor_free(tensor);

  managed.deleter = delete_managed;
  managed.dl_tensor.dtype.lanes = 4;
  REFUSED(leafpack_tensor_from_dlpack(&managed, &tensor), "lane");
  managed.dl_tensor.dtype.lanes = 1;
  managed.dl_tensor.dtype.bits = 24;
  REFUSED(leafpack_tensor_from_dlpack(&managed, &tensor), "24");
  managed.dl_tensor.dtype.bits = 32;
  managed.dl_tensor.device.device_type = kDLCUDA;
  FAILS(leafpack_tensor_from_dlpack(&managed, &tensor), LEAFPACK_UNIMPLEMENTED, "CPU");
  managed.dl_tensor.device.device_type = kDLCPU;
  managed.dl_tensor.ndim = -1;
  REFUSED(leafpack_tensor_from_dlpack(&managed, &tensor), "-1");
  managed.dl_tensor.ndim = 2;
  managed.dl_tensor.shape = NULL;
  REFUSED(leafpack_tensor_from_dlpack(&managed, &tensor), "NULL");
  managed.dl_tensor.shape = sizes;
  managed.dl_tensor.byte_offset = 1;
  REFUSED(leafpack_tensor_from_dlpack(&managed, &tensor), "aligned");
  REFUSED(leafpack_tensor_from_dlpack(NULL, &tensor), "managed is NULL");
  managed.dl_tensor.byte_offset = 0;
  REFUSED(leafpack_tensor_from_dlpack(&managed, NULL), "tensor is NULL");
  CHECK_INT(deleted, 1); /* what was refused stays the caller's */

  DLManagedTensorVersioned versioned;
  memset(&versioned, 0, sizeof(versioned));
  versioned.version.major = DLPACK_MAJOR_VERSION;
  versioned.dl_tensor = managed.dl_tensor;
  versioned.dl_tensor.byte_offset = 0;
  versioned.deleter = delete_versioned;
  OK(leafpack_tensor_from_dlpack_versioned(&versioned, &tensor));
  OK(leafpack_tensor_get_info(tensor, &info));
  CHECK(info.data == data);
  leafpack_tensor_free(tensor);
  CHECK_INT(deleted, 2);
  versioned.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  REFUSED(leafpack_tensor_from_dlpack_versioned(&versioned, &tensor), "read");
  versioned.flags = 0;
  versioned.version.major = DLPACK_MAJOR_VERSION + 1;
  REFUSED(leafpack_tensor_from_dlpack_versioned(&versioned, &tensor), "DLPack");
  CHECK_INT(deleted, 2);
  check_no_leaks();
}

static void dlpack_out(void) {
  const int64_t sizes[] = {2, 3};
  leafpack_tensor* tensor = NULL;
  leafpack_tensor* again = NULL;
  leafpack_tensor_info info = LEAFPACK_TENSOR_INFO_INIT;
  DLManagedTensor* managed = NULL;
  DLManagedTensorVersioned* versioned = NULL;
  OK(leafpack_tensor_zeros(LEAFPACK_INT32, 2, sizes, &tensor));
  OK(leafpack_tensor_get_info(tensor, &info));
  OK(leafpack_tensor_to_dlpack(tensor, &managed));
  OK(leafpack_tensor_to_dlpack_versioned(tensor, &versioned));
  leafpack_tensor_free(tensor); /* they hold the memory */
  CHECK((char*)managed->dl_tensor.data + managed->dl_tensor.byte_offset == info.data);
  CHECK_INT(managed->dl_tensor.dtype.code, kDLInt);
  CHECK_INT(managed->dl_tensor.dtype.bits, 32);
  CHECK_INT(managed->dl_tensor.shape[1], 3);
  CHECK_INT(versioned->version.major, DLPACK_MAJOR_VERSION);
  ((int32_t*)managed->dl_tensor.data)[5] = 55;
  /* In again: the same memory. */
  OK(leafpack_tensor_from_dlpack(managed, &again));
  OK(leafpack_tensor_get_info(again, &info));
  CHECK_INT(((int32_t*)info.data)[5], 55);
  CHECK(info.data == versioned->dl_tensor.data);
  leafpack_tensor_free(again);
  CHECK_INT(((int32_t*)versioned->dl_tensor.data)[5], 55);
  versioned->deleter(versioned);
  REFUSED(leafpack_tensor_to_dlpack(NULL, &managed), "tensor is NULL");
  REFUSED(leafpack_tensor_to_dlpack(again, &managed), "alive");
  check_no_leaks();
}

int main(void) {
  buffers();
  wrong_buffers();
  later_versions();
  dtypes();
  undefined();
  dlpack_in();
  dlpack_out();
  return 0;
}
