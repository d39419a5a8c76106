/* structs_test GOLDEN: the size of each struct of leafpack.h, the offset and size of each member, and the
 * value of each constant are those of the golden file. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/c/leafpack.h"

static char text[1 << 16];
static size_t used;

static void add_line(const char* kind, const char* name, long long first, long long second) {
  used += (size_t)snprintf(text + used, sizeof(text) - used, "%s %s %lld %lld\n", kind, name, first,
                           second);
  if (used >= sizeof(text)) exit(2);
}

/* A struct and its size, with a line for each member: offset and size. */
#define STRUCT(type) add_line("struct", #type, (long long)sizeof(type), 0)
#define MEMBER(type, member)                                  \
  add_line("member", #member, (long long)offsetof(type, member), \
           (long long)sizeof(((type*)NULL)->member))
#define CONSTANT(name) add_line("constant", #name, (long long)(name), 0)

static void add_buffer(void) {
  STRUCT(leafpack_buffer);
  MEMBER(leafpack_buffer, struct_size);
  MEMBER(leafpack_buffer, data);
  MEMBER(leafpack_buffer, dtype);
  MEMBER(leafpack_buffer, reserved);
  MEMBER(leafpack_buffer, num_dims);
  MEMBER(leafpack_buffer, sizes);
  MEMBER(leafpack_buffer, strides);
  MEMBER(leafpack_buffer, release);
  MEMBER(leafpack_buffer, context);
}

static void add_tensor_info(void) {
  STRUCT(leafpack_tensor_info);
  MEMBER(leafpack_tensor_info, struct_size);
  MEMBER(leafpack_tensor_info, data);
  MEMBER(leafpack_tensor_info, dtype);
  MEMBER(leafpack_tensor_info, kind);
  MEMBER(leafpack_tensor_info, device_type);
  MEMBER(leafpack_tensor_info, device_index);
  MEMBER(leafpack_tensor_info, num_dims);
  MEMBER(leafpack_tensor_info, sizes);
  MEMBER(leafpack_tensor_info, strides);
  MEMBER(leafpack_tensor_info, num_elements);
  MEMBER(leafpack_tensor_info, element_size);
}

static void add_component(void) {
  STRUCT(leafpack_component);
  MEMBER(leafpack_component, kind);
  MEMBER(leafpack_component, reserved);
  MEMBER(leafpack_component, name);
  MEMBER(leafpack_component, name_size);
  MEMBER(leafpack_component, position);
}

static void add_group_options(void) {
  STRUCT(leafpack_group_options);
  MEMBER(leafpack_group_options, struct_size);
  MEMBER(leafpack_group_options, backend);
  MEMBER(leafpack_group_options, timeout_ms);
  MEMBER(leafpack_group_options, interface_name);
  MEMBER(leafpack_group_options, interrupt);
  MEMBER(leafpack_group_options, interrupt_context);
  MEMBER(leafpack_group_options, refusal);
}

static void add_stats(void) {
  STRUCT(leafpack_stats);
  MEMBER(leafpack_stats, struct_size);
  MEMBER(leafpack_stats, prepare);
  MEMBER(leafpack_stats, agree);
  MEMBER(leafpack_stats, pack);
  MEMBER(leafpack_stats, communicate);
  MEMBER(leafpack_stats, unpack);
  MEMBER(leafpack_stats, total);
  MEMBER(leafpack_stats, leaves);
  MEMBER(leafpack_stats, skipped);
  MEMBER(leafpack_stats, bytes);
  MEMBER(leafpack_stats, messages);
}

static void add_call_options(void) {
  STRUCT(leafpack_call_options);
  MEMBER(leafpack_call_options, struct_size);
  MEMBER(leafpack_call_options, timeout_ms);
  MEMBER(leafpack_call_options, name);
  MEMBER(leafpack_call_options, on_failure);
  MEMBER(leafpack_call_options, check);
  MEMBER(leafpack_call_options, max_in_flight_bytes);
  MEMBER(leafpack_call_options, interrupt);
  MEMBER(leafpack_call_options, interrupt_context);
  MEMBER(leafpack_call_options, stats);
  MEMBER(leafpack_call_options, refusal);
}

static void add_reduce_options(void) {
  STRUCT(leafpack_reduce_options);
  MEMBER(leafpack_reduce_options, struct_size);
  MEMBER(leafpack_reduce_options, timeout_ms);
  MEMBER(leafpack_reduce_options, name);
  MEMBER(leafpack_reduce_options, on_failure);
  MEMBER(leafpack_reduce_options, check);
  MEMBER(leafpack_reduce_options, max_in_flight_bytes);
  MEMBER(leafpack_reduce_options, interrupt);
  MEMBER(leafpack_reduce_options, interrupt_context);
  MEMBER(leafpack_reduce_options, stats);
  MEMBER(leafpack_reduce_options, op);
  MEMBER(leafpack_reduce_options, bucketing);
  MEMBER(leafpack_reduce_options, factor);
  MEMBER(leafpack_reduce_options, bucket_bytes);
  MEMBER(leafpack_reduce_options, leaves);
  MEMBER(leafpack_reduce_options, reserved);
  MEMBER(leafpack_reduce_options, takes_leaf);
  MEMBER(leafpack_reduce_options, takes_leaf_context);
  MEMBER(leafpack_reduce_options, refusal);
}

static void add_transfer_options(void) {
  STRUCT(leafpack_transfer_options);
  MEMBER(leafpack_transfer_options, struct_size);
  MEMBER(leafpack_transfer_options, tag);
  MEMBER(leafpack_transfer_options, timeout_ms);
  MEMBER(leafpack_transfer_options, name);
  MEMBER(leafpack_transfer_options, max_bytes);
  MEMBER(leafpack_transfer_options, interrupt);
  MEMBER(leafpack_transfer_options, interrupt_context);
}

static void add_constants(void) {
  CONSTANT(LEAFPACK_LOG_INFO);
  CONSTANT(LEAFPACK_LOG_WARNING);
  CONSTANT(LEAFPACK_LOG_ERROR);
  CONSTANT(LEAFPACK_OK);
  CONSTANT(LEAFPACK_CANCELLED);
  CONSTANT(LEAFPACK_UNKNOWN);
  CONSTANT(LEAFPACK_INVALID_ARGUMENT);
  CONSTANT(LEAFPACK_DEADLINE_EXCEEDED);
  CONSTANT(LEAFPACK_NOT_FOUND);
  CONSTANT(LEAFPACK_ALREADY_EXISTS);
  CONSTANT(LEAFPACK_RESOURCE_EXHAUSTED);
  CONSTANT(LEAFPACK_FAILED_PRECONDITION);
  CONSTANT(LEAFPACK_ABORTED);
  CONSTANT(LEAFPACK_OUT_OF_RANGE);
  CONSTANT(LEAFPACK_UNIMPLEMENTED);
  CONSTANT(LEAFPACK_INTERNAL);
  CONSTANT(LEAFPACK_UNAVAILABLE);
  CONSTANT(LEAFPACK_KIND_OTHER);
  CONSTANT(LEAFPACK_KIND_LAYOUT_MISMATCH);
  CONSTANT(LEAFPACK_KIND_PEER_REFUSED);
  CONSTANT(LEAFPACK_KIND_UNSUPPORTED);
  CONSTANT(LEAFPACK_KIND_DEADLINE);
  CONSTANT(LEAFPACK_KIND_INTERRUPTED);
  CONSTANT(LEAFPACK_KIND_PEER_LOST);
  CONSTANT(LEAFPACK_UINT8);
  CONSTANT(LEAFPACK_INT8);
  CONSTANT(LEAFPACK_INT16);
  CONSTANT(LEAFPACK_INT32);
  CONSTANT(LEAFPACK_INT64);
  CONSTANT(LEAFPACK_FLOAT16);
  CONSTANT(LEAFPACK_FLOAT32);
  CONSTANT(LEAFPACK_FLOAT64);
  CONSTANT(LEAFPACK_COMPLEX32);
  CONSTANT(LEAFPACK_COMPLEX64);
  CONSTANT(LEAFPACK_COMPLEX128);
  CONSTANT(LEAFPACK_BOOL);
  CONSTANT(LEAFPACK_BFLOAT16);
  CONSTANT(LEAFPACK_FLOAT8_E5M2);
  CONSTANT(LEAFPACK_FLOAT8_E4M3FN);
  CONSTANT(LEAFPACK_FLOAT8_E5M2FNUZ);
  CONSTANT(LEAFPACK_FLOAT8_E4M3FNUZ);
  CONSTANT(LEAFPACK_UINT16);
  CONSTANT(LEAFPACK_UINT32);
  CONSTANT(LEAFPACK_UINT64);
  CONSTANT(LEAFPACK_FLOAT8_E8M0FNU);
  CONSTANT(LEAFPACK_NO_DTYPE);
  CONSTANT(LEAFPACK_DENSE);
  CONSTANT(LEAFPACK_SPARSE);
  CONSTANT(LEAFPACK_UNDEFINED);
  CONSTANT(LEAFPACK_VALUE_NONE);
  CONSTANT(LEAFPACK_VALUE_STRING);
  CONSTANT(LEAFPACK_VALUE_INT);
  CONSTANT(LEAFPACK_VALUE_FLOAT);
  CONSTANT(LEAFPACK_VALUE_BOOL);
  CONSTANT(LEAFPACK_VALUE_BYTES);
  CONSTANT(LEAFPACK_VALUE_LIST);
  CONSTANT(LEAFPACK_NAME);
  CONSTANT(LEAFPACK_POSITION);
  CONSTANT(LEAFPACK_ENTRY_TENSOR);
  CONSTANT(LEAFPACK_ENTRY_VALUE);
  CONSTANT(LEAFPACK_ENTRY_TREE);
  CONSTANT(LEAFPACK_SUM);
  CONSTANT(LEAFPACK_AVG);
  CONSTANT(LEAFPACK_PRODUCT);
  CONSTANT(LEAFPACK_MIN);
  CONSTANT(LEAFPACK_MAX);
  CONSTANT(LEAFPACK_BAND);
  CONSTANT(LEAFPACK_BOR);
  CONSTANT(LEAFPACK_BXOR);
  CONSTANT(LEAFPACK_PREMUL_SUM);
  CONSTANT(LEAFPACK_REPORT);
  CONSTANT(LEAFPACK_RESTORE);
  CONSTANT(LEAFPACK_AUTO);
  CONSTANT(LEAFPACK_PER_LEAF);
  CONSTANT(LEAFPACK_MAX_BYTES);
  CONSTANT(LEAFPACK_ALL_LEAVES);
  CONSTANT(LEAFPACK_FLOATING_LEAVES);
  CONSTANT(LEAFPACK_CHOSEN_LEAVES);
  CONSTANT(LEAFPACK_ALWAYS);
  CONSTANT(LEAFPACK_FIRST);
  CONSTANT(LEAFPACK_OFF);
  CONSTANT(LEAFPACK_STACK);
  CONSTANT(LEAFPACK_CONCAT);
  CONSTANT(LEAFPACK_ABI_VERSION);
  CONSTANT(LEAFPACK_NO_COLOR);
  CONSTANT(LEAFPACK_ANY_RANK);
  CONSTANT(LEAFPACK_NO_TIMEOUT);
}

int main(int argc, char** argv) {
  static char golden[sizeof(text)];
  if (argc != 2) return 2;
  add_buffer();
  add_tensor_info();
  add_component();
  add_group_options();
  add_stats();
  add_call_options();
  add_reduce_options();
  add_transfer_options();
  add_constants();
  FILE* file = fopen(argv[1], "rb");
  if (file == NULL) {
    perror(argv[1]);
    return 2;
  }
  const size_t size = fread(golden, 1, sizeof(golden) - 1, file);
  fclose(file);
  if (size == used && memcmp(golden, text, used) == 0) return 0;
  printf("%s", text);
  fprintf(stderr, "what is printed above is not %s\n", argv[1]);
  return 1;
}
