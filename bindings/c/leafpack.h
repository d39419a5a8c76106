/* leafpack.h: trees of tensors, and collectives on them, from C (C11) and whatever can call C.
 *
 *   leafpack_group* group = NULL;
 *   leafpack_error* error = leafpack_group_from_environment(NULL, &group);
 *   if (error == NULL) error = leafpack_all_reduce(tree, group, NULL);
 *   if (error != NULL) {
 *     fprintf(stderr, "%s\n", leafpack_error_message(error));
 *     leafpack_error_free(error);
 *   }
 *
 * Rules of every function, unless its comment says otherwise:
 *
 * Errors. What can fail returns a leafpack_error*: NULL on success, else an object that the caller
 * frees with leafpack_error_free. Nothing is thrown through this interface, and nothing but memory
 * that the caller lied about can make it crash: a NULL argument, a number that is no constant of its
 * list, a wrong struct_size or a handle that has been freed is LEAFPACK_INVALID_ARGUMENT. After an
 * error, results are as they were before the call.
 *
 * Functions of the caller should throw nothing. An exception is stopped all the same: out of `takes_leaf` it refuses
 * the call on all ranks, out of `interrupt` it gives the call up and is logged; out of `release` and `log` it ends
 * the program, as do a longjmp out of any of them and the end of a thread (pthread_exit, pthread_cancel) inside of
 * a call.
 *
 * Handles (leafpack_error, _tensor, _value, _tree, _entries, _layout, _store, _group, _work, _result) are
 * opaque. Each one that a function stores in a result (the last parameters, `X** x`) is the caller's,
 * who frees it with leafpack_X_free; NULL may be freed. Handles share what they stand for: a tree keeps
 * the tensors that were set into it, a call in flight keeps its tree and its group, and every handle
 * may be freed in any order. A handle that was freed is known as such until its address is used
 * again; freeing it again does nothing but log a warning.
 *
 * Borrowed memory (const char*, const int64_t*, const void* that come out of a handle) lives until
 * that handle is freed, unless its function says otherwise. Text is UTF-8 by convention and ends
 * with a zero byte. Memory that goes in (paths, texts, arrays, options) is copied or read before the
 * function returns, but for the data of tensors.
 *
 * Structs of options begin with struct_size, the size that the caller was compiled with; use the
 * _INIT macros. All-zero members are the defaults, and NULL in place of a struct means defaults. A
 * later version may add members at the end; members that this library does not know must be zero.
 *
 * Threads. All functions may be called from any thread. One tree may be read by any number of
 * threads, and changed by one while no other uses it. Calls on one group come from one thread at a
 * time and in one order on all ranks; transfers (send, recv) are not bound to an order. Works, errors,
 * tensors, values, entries, layouts, stores and results may be used by many threads at once. After fork()
 * without exec nothing works in the child.
 *
 * Ranks are those of the job, as the launcher numbers them and as errors name them; arrays with one
 * element per rank are in order of the ranks of the group. Times are milliseconds.
 */
#ifndef LEAFPACK_BINDINGS_C_LEAFPACK_H_
#define LEAFPACK_BINDINGS_C_LEAFPACK_H_

#include <stddef.h>
#include <stdint.h>

/* Of this header. The library's own: leafpack_version and its neighbours. */
#define LEAFPACK_VERSION_MAJOR 0
#define LEAFPACK_VERSION_MINOR 1
#define LEAFPACK_VERSION_PATCH 0
/* Grows when a program that was compiled with an older header would no longer work. */
#define LEAFPACK_ABI_VERSION 1

#if defined(__GNUC__)
#define LEAFPACK_API __attribute__((visibility("default")))
#define LEAFPACK_MUST_USE __attribute__((warn_unused_result))
#else
#define LEAFPACK_API
#define LEAFPACK_MUST_USE
#endif
/* A function that can fail. */
#define LEAFPACK_CALL LEAFPACK_API LEAFPACK_MUST_USE leafpack_error*

#ifdef __cplusplus
extern "C" {
#endif

typedef struct leafpack_error leafpack_error;
typedef struct leafpack_tensor leafpack_tensor;
typedef struct leafpack_value leafpack_value;
typedef struct leafpack_tree leafpack_tree;
typedef struct leafpack_entries leafpack_entries;
typedef struct leafpack_layout leafpack_layout;
typedef struct leafpack_store leafpack_store;
typedef struct leafpack_group leafpack_group;
typedef struct leafpack_work leafpack_work;
typedef struct leafpack_result leafpack_result;

/* DLPack's own, from dlpack.h. */
struct DLManagedTensor;
struct DLManagedTensorVersioned;

/* ---- Library ---------------------------------------------------------------------------------- */

/* "0.1.0". Lives for ever. */
LEAFPACK_API const char* leafpack_version(void);
/* major * 10000 + minor * 100 + patch. */
LEAFPACK_API int32_t leafpack_version_number(void);
/* LEAFPACK_ABI_VERSION of the library: a program asks for its own or refuses to run. */
LEAFPACK_API int32_t leafpack_abi_version(void);
/* The torch that the library was built with, "2.13.0". Lives for ever. */
LEAFPACK_API const char* leafpack_torch_version(void);

/* Number of handles of all kinds that are not freed yet, for tests that look for leaks. */
LEAFPACK_API int64_t leafpack_live_handles(void);

/* Severities of log messages. */
enum { LEAFPACK_LOG_INFO = 0, LEAFPACK_LOG_WARNING = 1, LEAFPACK_LOG_ERROR = 2 };

/* Gives every log message of leafpack to `log`, in place of the standard error stream, until the next call;
 * NULL gives them to that stream again. What torch's c10d below it writes by itself stays on that stream.
 * Called from any thread, by several at once; `file` and `message` live during the call only. It must not
 * call into leafpack. When this function returns, the function that was set before is not running and is
 * not called again. */
LEAFPACK_CALL leafpack_set_log(void (*log)(void* context, int32_t severity, const char* file,
                                           int32_t line, const char* message),
                               void* context);

/* ---- Errors ----------------------------------------------------------------------------------- */

/* Codes: absl::StatusCode's numbers. */
enum {
  LEAFPACK_OK = 0,
  LEAFPACK_CANCELLED = 1,
  LEAFPACK_UNKNOWN = 2,
  LEAFPACK_INVALID_ARGUMENT = 3,
  LEAFPACK_DEADLINE_EXCEEDED = 4,
  LEAFPACK_NOT_FOUND = 5,
  LEAFPACK_ALREADY_EXISTS = 6,
  LEAFPACK_RESOURCE_EXHAUSTED = 8,
  LEAFPACK_FAILED_PRECONDITION = 9,
  LEAFPACK_ABORTED = 10,
  LEAFPACK_OUT_OF_RANGE = 11,
  LEAFPACK_UNIMPLEMENTED = 12,
  LEAFPACK_INTERNAL = 13,
  LEAFPACK_UNAVAILABLE = 14
};

/* Kinds, finer than codes: the rows of docs/errors.md. */
enum {
  LEAFPACK_KIND_OTHER = 0,
  LEAFPACK_KIND_LAYOUT_MISMATCH = 1, /* the ranks disagree: path, ranks */
  LEAFPACK_KIND_PEER_REFUSED = 2,    /* another rank refused or failed: ranks */
  LEAFPACK_KIND_UNSUPPORTED = 3,     /* op, dtype or kind of leaf: path */
  LEAFPACK_KIND_DEADLINE = 4,        /* too late, or another rank gave up: ranks */
  LEAFPACK_KIND_INTERRUPTED = 5,     /* given up on this rank */
  LEAFPACK_KIND_PEER_LOST = 6        /* a rank died or left: ranks */
};

/* What follows never fails. Of NULL: LEAFPACK_OK, LEAFPACK_KIND_OTHER, "", no ranks, no paths, 1, 0. */
LEAFPACK_API int32_t leafpack_error_code(const leafpack_error* error);
LEAFPACK_API int32_t leafpack_error_kind(const leafpack_error* error);
LEAFPACK_API const char* leafpack_error_message(const leafpack_error* error);
/* The printable path of the first leaf or node concerned, or "". Of functions that are given a path, that one. */
LEAFPACK_API const char* leafpack_error_path(const leafpack_error* error);
/* Number of ranks that the error is about; `ranks`, if it is not NULL, gets them, sorted. */
LEAFPACK_API size_t leafpack_error_ranks(const leafpack_error* error, const int32_t** ranks);
/* Number of leaves that already hold their result, and the printable path of each ("" past the end). */
LEAFPACK_API size_t leafpack_error_num_paths_done(const leafpack_error* error);
LEAFPACK_API const char* leafpack_error_path_done(const leafpack_error* error, size_t index);
/* 1 if every leaf of this rank is as it was before the call, else 0. */
LEAFPACK_API int32_t leafpack_error_tree_unchanged(const leafpack_error* error);
/* 1 if other ranks may have succeeded, else 0. */
LEAFPACK_API int32_t leafpack_error_outcome_unknown(const leafpack_error* error);
LEAFPACK_API void leafpack_error_free(leafpack_error* error);

/* ---- Tensors ---------------------------------------------------------------------------------- */

/* Numbers of dtypes, which never change. */
enum {
  LEAFPACK_UINT8 = 0,
  LEAFPACK_INT8 = 1,
  LEAFPACK_INT16 = 2,
  LEAFPACK_INT32 = 3,
  LEAFPACK_INT64 = 4,
  LEAFPACK_FLOAT16 = 5,
  LEAFPACK_FLOAT32 = 6,
  LEAFPACK_FLOAT64 = 7,
  LEAFPACK_COMPLEX32 = 8,
  LEAFPACK_COMPLEX64 = 9,
  LEAFPACK_COMPLEX128 = 10,
  LEAFPACK_BOOL = 11,
  LEAFPACK_BFLOAT16 = 15,
  LEAFPACK_FLOAT8_E5M2 = 23,
  LEAFPACK_FLOAT8_E4M3FN = 24,
  LEAFPACK_FLOAT8_E5M2FNUZ = 25,
  LEAFPACK_FLOAT8_E4M3FNUZ = 26,
  LEAFPACK_UINT16 = 27,
  LEAFPACK_UINT32 = 28,
  LEAFPACK_UINT64 = 29,
  LEAFPACK_FLOAT8_E8M0FNU = 44,
  LEAFPACK_NO_DTYPE = 255 /* of an undefined tensor, and of dtypes that have no number here */
};

/* "float32"; "undefined" for a number that is none. Lives for ever. */
LEAFPACK_API const char* leafpack_dtype_name(int32_t dtype);
/* Bytes of an element; 0 for a number that is none. */
LEAFPACK_API size_t leafpack_dtype_size(int32_t dtype);

/* Memory of the caller, to be used as a tensor where it lies. */
typedef struct leafpack_buffer {
  size_t struct_size;
  void* data;             /* the element at index 0, 0, ...; aligned to its size; NULL if there is none */
  int32_t dtype;
  int32_t reserved;       /* 0 */
  size_t num_dims;        /* at most 64 */
  const int64_t* sizes;   /* num_dims of them, elements */
  const int64_t* strides; /* num_dims of them, elements, none negative; NULL: row-major without gaps */
  /* Called once with `context`, from any thread, when nothing uses the memory any more: no tensor, tree
   * or call. NULL: the memory outlives them all, and is the caller's to watch. Must not call leafpack. */
  void (*release)(void* context);
  void* context;
} leafpack_buffer;
#define LEAFPACK_BUFFER_INIT \
  { sizeof(leafpack_buffer), NULL, LEAFPACK_FLOAT32, 0, 0, NULL, NULL, NULL, NULL }

/* A tensor over the caller's memory; nothing is copied. On an error `release` is not called. */
LEAFPACK_CALL leafpack_tensor_from_buffer(const leafpack_buffer* buffer, leafpack_tensor** tensor);
/* A new tensor in CPU memory, filled with zeros. */
LEAFPACK_CALL leafpack_tensor_zeros(int32_t dtype, size_t num_dims, const int64_t* sizes,
                                    leafpack_tensor** tensor);
/* An undefined tensor, which is a legal leaf: a gradient that does not exist yet. */
LEAFPACK_CALL leafpack_tensor_undefined(leafpack_tensor** tensor);

/* A tensor over memory that came as DLPack; nothing is copied. On success the deleter of `managed`
 * is called when nothing uses the memory any more; on an error `managed` stays the caller's. */
LEAFPACK_CALL leafpack_tensor_from_dlpack(struct DLManagedTensor* managed, leafpack_tensor** tensor);
LEAFPACK_CALL leafpack_tensor_from_dlpack_versioned(struct DLManagedTensorVersioned* managed,
                                                    leafpack_tensor** tensor);
/* The tensor as DLPack; nothing is copied. `managed` holds the memory until its deleter is called,
 * which the caller, or who takes it, must do once. LEAFPACK_INVALID_ARGUMENT or LEAFPACK_UNIMPLEMENTED
 * for a tensor that DLPack cannot describe: undefined, sparse. */
LEAFPACK_CALL leafpack_tensor_to_dlpack(const leafpack_tensor* tensor,
                                        struct DLManagedTensor** managed);
LEAFPACK_CALL leafpack_tensor_to_dlpack_versioned(const leafpack_tensor* tensor,
                                                  struct DLManagedTensorVersioned** managed);

/* Kinds of tensors. */
enum {
  LEAFPACK_DENSE = 0,     /* strided, any strides */
  LEAFPACK_SPARSE = 1,    /* anything else that has sizes */
  LEAFPACK_UNDEFINED = 2
};

typedef struct leafpack_tensor_info {
  size_t struct_size;
  void* data;             /* the element at index 0, 0, ... in CPU memory; else, or if there is none, NULL */
  int32_t dtype;
  int32_t kind;           /* LEAFPACK_DENSE, ... */
  int32_t device_type;    /* DLPack's number: 1 is the CPU */
  int32_t device_index;
  size_t num_dims;
  const int64_t* sizes;   /* elements; of the tensor, as borrowed memory */
  const int64_t* strides; /* elements; NULL unless LEAFPACK_DENSE */
  int64_t num_elements;
  int64_t element_size;   /* bytes */
} leafpack_tensor_info;
#define LEAFPACK_TENSOR_INFO_INIT \
  { sizeof(leafpack_tensor_info), NULL, 0, 0, 0, 0, 0, NULL, NULL, 0, 0 }

/* Fills `info`, whose struct_size the caller has set. */
LEAFPACK_CALL leafpack_tensor_get_info(const leafpack_tensor* tensor, leafpack_tensor_info* info);
LEAFPACK_API void leafpack_tensor_free(leafpack_tensor* tensor);

/* ---- Values: leaves that are no tensors ------------------------------------------------------- */

enum {
  LEAFPACK_VALUE_NONE = 0,
  LEAFPACK_VALUE_STRING = 1,
  LEAFPACK_VALUE_INT = 2,
  LEAFPACK_VALUE_FLOAT = 3,
  LEAFPACK_VALUE_BOOL = 4,
  LEAFPACK_VALUE_BYTES = 5,
  LEAFPACK_VALUE_LIST = 6
};

/* As the size of a text: it ends with its first zero byte. */
#define LEAFPACK_TO_ZERO SIZE_MAX

LEAFPACK_CALL leafpack_value_none(leafpack_value** value);
/* `size` bytes, or LEAFPACK_TO_ZERO. */
LEAFPACK_CALL leafpack_value_string(const char* text, size_t size, leafpack_value** value);
LEAFPACK_CALL leafpack_value_int(int64_t number, leafpack_value** value);
LEAFPACK_CALL leafpack_value_float(double number, leafpack_value** value);
/* 0 is false, anything else true. */
LEAFPACK_CALL leafpack_value_bool(int32_t truth, leafpack_value** value);
LEAFPACK_CALL leafpack_value_bytes(const void* data, size_t size, leafpack_value** value);
/* A list of `count` values; lists nest at most 64 deep. */
LEAFPACK_CALL leafpack_value_list(const leafpack_value* const* items, size_t count,
                                  leafpack_value** value);

/* LEAFPACK_VALUE_STRING, ... */
LEAFPACK_CALL leafpack_value_kind(const leafpack_value* value, int32_t* kind);
/* LEAFPACK_INVALID_ARGUMENT when the value is of another kind. */
LEAFPACK_CALL leafpack_value_get_int(const leafpack_value* value, int64_t* number);
LEAFPACK_CALL leafpack_value_get_float(const leafpack_value* value, double* number);
LEAFPACK_CALL leafpack_value_get_bool(const leafpack_value* value, int32_t* truth);
/* Of a string or bytes: the bytes, with a zero byte behind them that `size` does not count. */
LEAFPACK_CALL leafpack_value_get_text(const leafpack_value* value, const char** text, size_t* size);
/* Of a list: its length, and the value at an index (LEAFPACK_OUT_OF_RANGE past the end). */
LEAFPACK_CALL leafpack_value_get_size(const leafpack_value* value, size_t* size);
LEAFPACK_CALL leafpack_value_get_item(const leafpack_value* value, size_t index,
                                      leafpack_value** item);
LEAFPACK_API void leafpack_value_free(leafpack_value* value);

/* ---- Paths and trees -------------------------------------------------------------------------- */

/* Kinds of components. */
enum { LEAFPACK_NAME = 1, LEAFPACK_POSITION = 2 };

/* One step of a path: a name, in which dots mean nothing, or a position in a list. */
typedef struct leafpack_component {
  int32_t kind;     /* LEAFPACK_NAME or LEAFPACK_POSITION */
  int32_t reserved; /* 0 */
  const char* name; /* any bytes; of a position NULL */
  size_t name_size; /* bytes, or LEAFPACK_TO_ZERO; of a position 0 */
  int64_t position; /* of a name 0 */
} leafpack_component;

/* leafpack_component path[] = {LEAFPACK_BY_NAME("encoder"), LEAFPACK_AT(3), LEAFPACK_BY_NAME("bias")}; */
#define LEAFPACK_BY_NAME(text) {LEAFPACK_NAME, 0, (text), LEAFPACK_TO_ZERO, 0}
#define LEAFPACK_AT(number) {LEAFPACK_POSITION, 0, NULL, 0, (number)}

/* A path is `depth` components from the root down; depth 0 (and path NULL) is the tree itself. */

/* An empty tree. `batch_size` is the leading dimensions that all its tensors share; with `batch_dims` 0
 * it may be NULL. */
LEAFPACK_CALL leafpack_tree_new(const int64_t* batch_size, size_t batch_dims, leafpack_tree** tree);
LEAFPACK_API void leafpack_tree_free(leafpack_tree* tree);

/* Puts a leaf or a tree at a path, in place of what was there. Nodes on the way are made. Trees and tensors
 * are shared, never copied. On an error nothing has changed. LEAFPACK_INVALID_ARGUMENT, naming the
 * path: it is empty, goes through a leaf, or is too long (512); the leading dimensions are not the batch
 * size; a tree would stand below itself. */
LEAFPACK_CALL leafpack_tree_set_tensor(leafpack_tree* tree, const leafpack_component* path,
                                       size_t depth, const leafpack_tensor* tensor);
LEAFPACK_CALL leafpack_tree_set_value(leafpack_tree* tree, const leafpack_component* path,
                                      size_t depth, const leafpack_value* value);
LEAFPACK_CALL leafpack_tree_set_tree(leafpack_tree* tree, const leafpack_component* path,
                                     size_t depth, const leafpack_tree* subtree);

/* What stands at a path. LEAFPACK_NOT_FOUND names the first component that is missing,
 * LEAFPACK_INVALID_ARGUMENT says that something of another kind is there. leafpack_tree_get_tree with
 * depth 0 gives one more handle of the same tree. */
LEAFPACK_CALL leafpack_tree_get_tensor(const leafpack_tree* tree, const leafpack_component* path,
                                       size_t depth, leafpack_tensor** tensor);
LEAFPACK_CALL leafpack_tree_get_value(const leafpack_tree* tree, const leafpack_component* path,
                                      size_t depth, leafpack_value** value);
LEAFPACK_CALL leafpack_tree_get_tree(const leafpack_tree* tree, const leafpack_component* path,
                                     size_t depth, leafpack_tree** subtree);

/* Takes away what stands at a path; LEAFPACK_NOT_FOUND if there is nothing. */
LEAFPACK_CALL leafpack_tree_erase(leafpack_tree* tree, const leafpack_component* path, size_t depth);
/* Takes away all. */
LEAFPACK_CALL leafpack_tree_clear(leafpack_tree* tree);
/* 1 if a leaf or a tree stands at the path, else 0. */
LEAFPACK_CALL leafpack_tree_contains(const leafpack_tree* tree, const leafpack_component* path,
                                     size_t depth, int32_t* contains);
/* Leaves of the whole tree, tensors or not. */
LEAFPACK_CALL leafpack_tree_num_leaves(const leafpack_tree* tree, size_t* num_leaves);
/* The number of batch dimensions; `batch_size`, if it is not NULL, gets them as memory of this handle,
 * valid until the batch size changes. */
LEAFPACK_CALL leafpack_tree_batch_size(const leafpack_tree* tree, size_t* batch_dims,
                                       const int64_t** batch_size);
LEAFPACK_CALL leafpack_tree_set_batch_size(leafpack_tree* tree, const int64_t* batch_size,
                                           size_t batch_dims);

/* Kinds of entries. */
enum { LEAFPACK_ENTRY_TENSOR = 1, LEAFPACK_ENTRY_VALUE = 2, LEAFPACK_ENTRY_TREE = 3 };

/* All leaves below the tree in canonical order (by path, component by component; positions before
 * names, names by their bytes), as a snapshot: changes of the tree do not change it. */
LEAFPACK_CALL leafpack_tree_leaves(const leafpack_tree* tree, leafpack_entries** entries);
/* The direct children, leaves and trees, in the same order. */
LEAFPACK_CALL leafpack_tree_children(const leafpack_tree* tree, leafpack_entries** entries);

/* Of entries: `index` is below the size, else LEAFPACK_OUT_OF_RANGE. */
LEAFPACK_CALL leafpack_entries_size(const leafpack_entries* entries, size_t* size);
LEAFPACK_CALL leafpack_entries_kind(const leafpack_entries* entries, size_t index, int32_t* kind);
/* The path from the tree that was asked; the size of each name is given. */
LEAFPACK_CALL leafpack_entries_path(const leafpack_entries* entries, size_t index,
                                    const leafpack_component** path, size_t* depth);
/* The same as text, encoder[3].bias, as errors have it. */
LEAFPACK_CALL leafpack_entries_path_text(const leafpack_entries* entries, size_t index,
                                         const char** text);
/* LEAFPACK_INVALID_ARGUMENT for an entry of another kind. */
LEAFPACK_CALL leafpack_entries_tensor(const leafpack_entries* entries, size_t index,
                                      leafpack_tensor** tensor);
LEAFPACK_CALL leafpack_entries_value(const leafpack_entries* entries, size_t index,
                                     leafpack_value** value);
LEAFPACK_CALL leafpack_entries_tree(const leafpack_entries* entries, size_t index,
                                    leafpack_tree** tree);
LEAFPACK_API void leafpack_entries_free(leafpack_entries* entries);

/* All about the leaves but the elements of tensors: what ranks compare before data moves. Refuses, with
 * the path, leaves that overlap themselves or each other in part. */
LEAFPACK_CALL leafpack_layout_of(const leafpack_tree* tree, leafpack_layout** layout);
/* The 128-bit digest: equal on all platforms for equal layouts. */
LEAFPACK_CALL leafpack_layout_digest(const leafpack_layout* layout, uint64_t* low, uint64_t* high);
/* One line per leaf, "encoder.bias: float32 [4] cpu\n". */
LEAFPACK_CALL leafpack_layout_text(const leafpack_layout* layout, const char** text);
/* Bytes of the dense leaves; those that share their memory once. */
LEAFPACK_CALL leafpack_layout_num_bytes(const leafpack_layout* layout, int64_t* num_bytes);
LEAFPACK_API void leafpack_layout_free(leafpack_layout* layout);

/* ---- Stores -----------------------------------------------------------------------------------
 *
 * Keys and values (any bytes) over which ranks meet. A store is one connection, whose calls come one after
 * the other: a call of another thread waits behind one that waits for a key; leafpack_store_clone gives a
 * connection of its own. Errors of all: LEAFPACK_DEADLINE_EXCEEDED when the store's time is over, with the
 * keys; LEAFPACK_UNAVAILABLE when it cannot be reached. As sizes of keys and texts LEAFPACK_TO_ZERO will
 * do. `timeout_ms` of the three that make a store: of what waits for a key, and for the server to
 * appear; 0: five minutes. */

/* A store in one process, reached by TCP. Not 0 as `serves`: this process listens at the address, as long as
 * a handle or a group over it lives; `port` 0 is then a free one, which leafpack_store_port tells. */
LEAFPACK_CALL leafpack_store_tcp(const char* host, int32_t port, int32_t serves, int64_t timeout_ms,
                                 leafpack_store** store);
/* A store in a file that all processes see. Its waits may end up to about a second after `timeout_ms`. What
 * is in the file is in the store, so one of a dead run must be removed before (leafpack_group_from_file
 * knows it, and need not be told). */
LEAFPACK_CALL leafpack_store_file(const char* path, int64_t timeout_ms, leafpack_store** store);
/* A store in the memory of this process. */
LEAFPACK_CALL leafpack_store_memory(int64_t timeout_ms, leafpack_store** store);
/* The same store with `prefix` and "/" before each key. */
LEAFPACK_CALL leafpack_store_with_prefix(const leafpack_store* store, const char* prefix,
                                         leafpack_store** prefixed);
LEAFPACK_CALL leafpack_store_clone(const leafpack_store* store, leafpack_store** clone);

LEAFPACK_CALL leafpack_store_set(const leafpack_store* store, const char* key, size_t key_size,
                                 const void* value, size_t size);
/* Waits for the key; gives LEAFPACK_VALUE_BYTES. */
LEAFPACK_CALL leafpack_store_get(const leafpack_store* store, const char* key, size_t key_size,
                                 leafpack_value** value);
/* Adds to a number that begins with 0; `sum` is what it is then. Its value reads as decimal text.
 * LEAFPACK_FAILED_PRECONDITION if the value is no number, LEAFPACK_INVALID_ARGUMENT if the sum would be beyond
 * 64 bits (but for what others add meanwhile). */
LEAFPACK_CALL leafpack_store_add(const leafpack_store* store, const char* key, size_t key_size,
                                 int64_t amount, int64_t* sum);
/* In one step: sets the key to `desired` if it has the value `expected`, or if it has none and `expected` is
 * empty. Gives the value afterwards (LEAFPACK_VALUE_BYTES): `expected` where there is still none. */
LEAFPACK_CALL leafpack_store_compare_set(const leafpack_store* store, const char* key,
                                         size_t key_size, const void* expected,
                                         size_t expected_size, const void* desired,
                                         size_t desired_size, leafpack_value** value);
/* 1 if the key is there now, else 0. */
LEAFPACK_CALL leafpack_store_has(const leafpack_store* store, const char* key, size_t key_size,
                                 int32_t* there);
/* Returns when the key is there, after `timeout_ms` (more than 0; 0: the store's) at the latest. */
LEAFPACK_CALL leafpack_store_wait(const leafpack_store* store, const char* key, size_t key_size,
                                  int64_t timeout_ms);
/* `was_there` (may be NULL) gets 1 if there was something to remove, else 0. LEAFPACK_UNIMPLEMENTED by
 * stores that cannot. */
LEAFPACK_CALL leafpack_store_remove(const leafpack_store* store, const char* key, size_t key_size,
                                    int32_t* was_there);
/* Keys of the whole store, whatever the prefix. A store in a file counts one or two of its own. */
LEAFPACK_CALL leafpack_store_num_keys(const leafpack_store* store, int64_t* num_keys);
/* Of a TCP store; else 0. */
LEAFPACK_CALL leafpack_store_port(const leafpack_store* store, int32_t* port);
LEAFPACK_API void leafpack_store_free(leafpack_store* store);

/* ---- Groups ----------------------------------------------------------------------------------- */

typedef struct leafpack_group_options {
  size_t struct_size;
  const char* backend;        /* "gloo" (NULL), "shm", "socket" */
  int64_t timeout_ms;         /* of calls that give none; 0: five minutes */
  const char* interface_name; /* of the network; NULL: chosen */
  /* Asked about every 50 ms by the function that makes the group, while it waits for a store that is
   * reached by TCP, and in leafpack_group_split; not 0 gives up. */
  int32_t (*interrupt)(void* context);
  void* interrupt_context;
  const char* refusal; /* as in leafpack_call_options; of leafpack_group_split all ranks hear */
} leafpack_group_options;
#define LEAFPACK_GROUP_OPTIONS_INIT {sizeof(leafpack_group_options), NULL, 0, NULL, NULL, NULL, NULL}

/* Making a group talks to nobody but the store at which the ranks meet; the first collective connects.
 * All of these may be called again for further groups, by all ranks in one order. */

/* All ranks of the job, from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as launchers set them. */
LEAFPACK_CALL leafpack_group_from_environment(const leafpack_group_options* options,
                                              leafpack_group** group);
/* Ranks 0 .. size - 1 that meet in a file which all of them see. */
LEAFPACK_CALL leafpack_group_from_file(const char* path, int32_t rank, int32_t size,
                                       const leafpack_group_options* options,
                                       leafpack_group** group);
/* "env://" (rank and size -1), "tcp://HOST:PORT" (rank 0 listens there), "file://PATH". */
LEAFPACK_CALL leafpack_group_from_url(const char* url, int32_t rank, int32_t size,
                                      const leafpack_group_options* options,
                                      leafpack_group** group);
/* Ranks that meet in a store. `prefix` keeps the group apart from other users of the store: equal on all
 * ranks, never used twice on one store. `global_ranks`: rank in the job of each place in the group; NULL:
 * they are equal. Further handles of the store stay the caller's, who may free them at once. */
LEAFPACK_CALL leafpack_group_from_store(const leafpack_store* store, const char* prefix,
                                        int32_t rank, int32_t size, const int32_t* global_ranks,
                                        const leafpack_group_options* options,
                                        leafpack_group** group);
/* Ranks that are threads of this process, over a store in its memory: `groups` has room for `size` (1 to
 * 4096) handles, one for each thread, and gets the group of rank r at index r. */
LEAFPACK_CALL leafpack_groups_in_process(int32_t size, const leafpack_group_options* options,
                                         leafpack_group** groups);
/* The group of some of the parent's ranks, in rising order; talks to nobody, so its members or all
 * ranks of the parent call it. `name` (may be NULL) keeps apart groups over equal lists.
 * LEAFPACK_FAILED_PRECONDITION on a rank that is no member. `options` NULL: the parent's. */
LEAFPACK_CALL leafpack_group_of_ranks(const leafpack_group* parent, const int32_t* ranks,
                                      size_t num_ranks, const char* name,
                                      const leafpack_group_options* options,
                                      leafpack_group** group);
/* As `color` of leafpack_group_split: take part, get no group (`group` gets NULL). */
#define LEAFPACK_NO_COLOR INT32_MIN
/* A collective over the parent: ranks of one color get one group, ordered by `key`, then by rank. */
LEAFPACK_CALL leafpack_group_split(const leafpack_group* parent, int32_t color, int32_t key,
                                   const leafpack_group_options* options, leafpack_group** group);

/* This process's place in the group, and in the job. */
LEAFPACK_CALL leafpack_group_rank(const leafpack_group* group, int32_t* rank);
LEAFPACK_CALL leafpack_group_size(const leafpack_group* group, int32_t* size);
LEAFPACK_CALL leafpack_group_global_rank(const leafpack_group* group, int32_t* rank);
/* From a place in the group to the rank in the job, and back. */
LEAFPACK_CALL leafpack_group_to_global(const leafpack_group* group, int32_t group_rank,
                                       int32_t* global_rank);
LEAFPACK_CALL leafpack_group_to_group(const leafpack_group* group, int32_t global_rank,
                                      int32_t* group_rank);
/* Lets calls in flight end for at most `timeout_ms` (more than 0), gives the rest up, and leaves.
 * Further calls are LEAFPACK_FAILED_PRECONDITION, on every handle of the group. */
LEAFPACK_CALL leafpack_group_shutdown(leafpack_group* group, int64_t timeout_ms);
/* The last handle or call in flight that goes leaves the group, waiting up to 5 s for calls in flight. A
 * program that ends without it looks to the other ranks as if it had died. */
LEAFPACK_API void leafpack_group_free(leafpack_group* group);

/* ---- Options of calls ------------------------------------------------------------------------- */

enum {
  LEAFPACK_SUM = 0,
  LEAFPACK_AVG = 1,
  LEAFPACK_PRODUCT = 2,
  LEAFPACK_MIN = 3,
  LEAFPACK_MAX = 4,
  LEAFPACK_BAND = 5,
  LEAFPACK_BOR = 6,
  LEAFPACK_BXOR = 7,
  LEAFPACK_PREMUL_SUM = 8 /* a sum of each rank's values times its `factor` */
};
/* Of a failure after data began to move: tell what is done, or put everything back. */
enum { LEAFPACK_REPORT = 0, LEAFPACK_RESTORE = 1 };
/* How leaves are put into messages. */
enum { LEAFPACK_AUTO = 0, LEAFPACK_PER_LEAF = 1, LEAFPACK_MAX_BYTES = 2 };
/* Which leaves take part. */
enum { LEAFPACK_ALL_LEAVES = 0, LEAFPACK_FLOATING_LEAVES = 1, LEAFPACK_CHOSEN_LEAVES = 2 };
/* Of the agreement; differs from LEAFPACK_ALWAYS only on backends of devices. */
enum { LEAFPACK_ALWAYS = 0, LEAFPACK_FIRST = 1, LEAFPACK_OFF = 2 };

/* Where the time of a call went, seconds; phases of different messages overlap. */
typedef struct leafpack_stats {
  size_t struct_size;
  double prepare, agree, pack, communicate, unpack, total;
  int64_t leaves;   /* tensors that took part */
  int64_t skipped;  /* leaves that are no tensors: compared only */
  int64_t bytes;    /* of this rank's leaves that take part */
  int64_t messages; /* 0 when the tree rode with its digest */
} leafpack_stats;
#define LEAFPACK_STATS_INIT {sizeof(leafpack_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Of collectives that move leaves. */
typedef struct leafpack_call_options {
  size_t struct_size;
  int64_t timeout_ms;          /* of the whole call, from now; 0: the group's */
  const char* name;            /* compared between ranks, at most 256 bytes; NULL: none */
  int32_t on_failure;          /* LEAFPACK_REPORT, ... */
  int32_t check;               /* LEAFPACK_ALWAYS, ... */
  int64_t max_in_flight_bytes; /* of packed bytes on this rank; 0: 64 MiB */
  /* Asked about every 50 ms by the thread that waits in a synchronous call; not 0 gives the call up. */
  int32_t (*interrupt)(void* context);
  void* interrupt_context;
  leafpack_stats* stats;       /* filled by a synchronous call; NULL: not */
  /* Not NULL: the call is refused with this text, on all ranks, as if the library had found fault with an
   * argument. So a caller tells the others why it cannot make the call that they wait in, such as a function
   * of its own that failed. */
  const char* refusal;
} leafpack_call_options;
#define LEAFPACK_CALL_OPTIONS_INIT \
  { sizeof(leafpack_call_options), 0, NULL, 0, 0, 0, NULL, NULL, NULL, NULL }

/* Of collectives that reduce. */
typedef struct leafpack_reduce_options {
  size_t struct_size;
  int64_t timeout_ms; /* this one and the next seven: as in leafpack_call_options */
  const char* name;
  int32_t on_failure;
  int32_t check;
  int64_t max_in_flight_bytes;
  int32_t (*interrupt)(void* context);
  void* interrupt_context;
  leafpack_stats* stats;
  int32_t op;           /* LEAFPACK_SUM, ... */
  int32_t bucketing;    /* LEAFPACK_AUTO, ... */
  double factor;        /* of LEAFPACK_PREMUL_SUM; may differ between ranks */
  int64_t bucket_bytes; /* of LEAFPACK_MAX_BYTES; more than 0 */
  int32_t leaves;       /* LEAFPACK_ALL_LEAVES, ... */
  int32_t reserved;     /* 0 */
  /* Of LEAFPACK_CHOSEN_LEAVES: whether a tensor takes part (not 0); the same on all ranks. Called during
   * the function that starts the call. */
  int32_t (*takes_leaf)(void* context, const char* path_text, const leafpack_component* path,
                        size_t depth);
  void* takes_leaf_context;
  const char* refusal; /* as in leafpack_call_options */
} leafpack_reduce_options;
#define LEAFPACK_REDUCE_OPTIONS_INIT                                                              \
  {                                                                                               \
    sizeof(leafpack_reduce_options), 0, NULL, 0, 0, 0, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL, \
        NULL, NULL                                                                                \
  }

/* Of transfers between two ranks. */
typedef struct leafpack_transfer_options {
  size_t struct_size;
  int64_t tag;        /* receives take only what was sent with the same one */
  int64_t timeout_ms; /* of the whole transfer, from now; 0: the group's */
  const char* name;   /* compared between the two ranks; NULL: none */
  int64_t max_bytes;  /* receives into nothing: a larger tree is refused; 0: any */
  int32_t (*interrupt)(void* context); /* as in leafpack_call_options */
  void* interrupt_context;
} leafpack_transfer_options;
#define LEAFPACK_TRANSFER_OPTIONS_INIT \
  { sizeof(leafpack_transfer_options), 0, 0, NULL, 0, NULL, NULL }

/* ---- Collectives ------------------------------------------------------------------------------
 *
 * Before a leaf changes, the ranks compare the whole call. If they differ, every rank gets
 * LEAFPACK_KIND_LAYOUT_MISMATCH with the first path that differs, what each side has, and the ranks;
 * nothing has changed and the group is usable at once. What one rank finds wrong with its own
 * arguments is that rank's error and LEAFPACK_KIND_PEER_REFUSED on the others. LEAFPACK_KIND_DEADLINE,
 * _PEER_LOST and _INTERRUPTED as docs/errors.md has them. Every wait ends by the call's deadline. A group
 * that is no handle, or a dead one, cannot tell anybody.
 *
 * X_async starts the same, returns at once, and gives a leafpack_work. Until the work is done, leaves
 * that it writes must be neither read nor written, and leaves that it sends must not be written. */

/* Every tensor becomes the reduction of those of all ranks, in place, equal bits on all ranks. */
LEAFPACK_CALL leafpack_all_reduce(const leafpack_tree* tree, const leafpack_group* group,
                                  const leafpack_reduce_options* options);
LEAFPACK_CALL leafpack_all_reduce_async(const leafpack_tree* tree, const leafpack_group* group,
                                        const leafpack_reduce_options* options,
                                        leafpack_work** work);

/* The same on the rank `root` of the job only; leaves of the others do not change. */
LEAFPACK_CALL leafpack_reduce(const leafpack_tree* tree, int32_t root, const leafpack_group* group,
                              const leafpack_reduce_options* options);
LEAFPACK_CALL leafpack_reduce_async(const leafpack_tree* tree, int32_t root,
                                    const leafpack_group* group,
                                    const leafpack_reduce_options* options, leafpack_work** work);

/* `trees` has one tree for each rank of the group, `num_trees` of them; this rank's own becomes the
 * reduction of those of all ranks, the others do not change. */
LEAFPACK_CALL leafpack_reduce_scatter(const leafpack_tree* const* trees, size_t num_trees,
                                      const leafpack_group* group,
                                      const leafpack_reduce_options* options);
LEAFPACK_CALL leafpack_reduce_scatter_async(const leafpack_tree* const* trees, size_t num_trees,
                                            const leafpack_group* group,
                                            const leafpack_reduce_options* options,
                                            leafpack_work** work);

/* Below, `result` gets the trees that a rank is given. It may be NULL where only trees that are there are
 * to be written. */

/* The root's leaves go to every rank: into `tree`, or, where that is NULL, into a new tree. The result has
 * one tree. The root must have one. */
LEAFPACK_CALL leafpack_broadcast(const leafpack_tree* tree, int32_t root,
                                 const leafpack_group* group, const leafpack_call_options* options,
                                 leafpack_result** result);
LEAFPACK_CALL leafpack_broadcast_async(const leafpack_tree* tree, int32_t root,
                                       const leafpack_group* group,
                                       const leafpack_call_options* options, leafpack_work** work);

/* The result has the trees of all ranks, by rank of the group, this rank's own as a copy. Layouts may
 * differ. */
LEAFPACK_CALL leafpack_all_gather(const leafpack_tree* tree, const leafpack_group* group,
                                  const leafpack_call_options* options, leafpack_result** result);
LEAFPACK_CALL leafpack_all_gather_async(const leafpack_tree* tree, const leafpack_group* group,
                                        const leafpack_call_options* options, leafpack_work** work);

/* How trees of one layout become one: a new first dimension, or along the first one. */
enum { LEAFPACK_STACK = 0, LEAFPACK_CONCAT = 1 };

/* The result has one tree, joined from those of all; all layouts must be equal. With `into` that tree is
 * written in place, else (NULL) a new one is made. */
LEAFPACK_CALL leafpack_all_gather_joined(const leafpack_tree* tree, int32_t joining,
                                         const leafpack_tree* into, const leafpack_group* group,
                                         const leafpack_call_options* options,
                                         leafpack_result** result);
LEAFPACK_CALL leafpack_all_gather_joined_async(const leafpack_tree* tree, int32_t joining,
                                               const leafpack_tree* into,
                                               const leafpack_group* group,
                                               const leafpack_call_options* options,
                                               leafpack_work** work);

/* As leafpack_all_gather on the root; the others get no trees. */
LEAFPACK_CALL leafpack_gather(const leafpack_tree* tree, int32_t root, const leafpack_group* group,
                              const leafpack_call_options* options, leafpack_result** result);
LEAFPACK_CALL leafpack_gather_async(const leafpack_tree* tree, int32_t root,
                                    const leafpack_group* group,
                                    const leafpack_call_options* options, leafpack_work** work);

/* The root gets one new tree, stacked; all layouts must be equal. */
LEAFPACK_CALL leafpack_gather_and_stack(const leafpack_tree* tree, int32_t root,
                                        const leafpack_group* group,
                                        const leafpack_call_options* options,
                                        leafpack_result** result);
LEAFPACK_CALL leafpack_gather_and_stack_async(const leafpack_tree* tree, int32_t root,
                                              const leafpack_group* group,
                                              const leafpack_call_options* options,
                                              leafpack_work** work);

/* The root's trees[i] goes to rank i of the group, into its `tree`, or, where that is NULL, into a new one.
 * Only the root gives `trees`, one for each rank; the others NULL and 0. The result has one tree. */
LEAFPACK_CALL leafpack_scatter(const leafpack_tree* tree, const leafpack_tree* const* trees,
                               size_t num_trees, int32_t root, const leafpack_group* group,
                               const leafpack_call_options* options, leafpack_result** result);
LEAFPACK_CALL leafpack_scatter_async(const leafpack_tree* tree, const leafpack_tree* const* trees,
                                     size_t num_trees, int32_t root, const leafpack_group* group,
                                     const leafpack_call_options* options, leafpack_work** work);

/* trees[i] goes to rank i of the group; the result has one tree from each, by rank. */
LEAFPACK_CALL leafpack_all_to_all(const leafpack_tree* const* trees, size_t num_trees,
                                  const leafpack_group* group,
                                  const leafpack_call_options* options, leafpack_result** result);
LEAFPACK_CALL leafpack_all_to_all_async(const leafpack_tree* const* trees, size_t num_trees,
                                        const leafpack_group* group,
                                        const leafpack_call_options* options, leafpack_work** work);

/* Returns once every rank of the group has called it. */
LEAFPACK_CALL leafpack_barrier(const leafpack_group* group, const leafpack_call_options* options);

/* The same for plain bytes of any size: the result has one string of bytes for broadcast and scatter, one
 * per rank for the gathers (none beside the root of gather). Only the root's data is looked at by
 * broadcast and scatter. The asynchronous forms copy the data before they return. */
LEAFPACK_CALL leafpack_broadcast_bytes(const void* data, size_t size, int32_t root,
                                       const leafpack_group* group,
                                       const leafpack_call_options* options,
                                       leafpack_result** result);
LEAFPACK_CALL leafpack_broadcast_bytes_async(const void* data, size_t size, int32_t root,
                                             const leafpack_group* group,
                                             const leafpack_call_options* options,
                                             leafpack_work** work);
LEAFPACK_CALL leafpack_all_gather_bytes(const void* data, size_t size, const leafpack_group* group,
                                        const leafpack_call_options* options,
                                        leafpack_result** result);
LEAFPACK_CALL leafpack_all_gather_bytes_async(const void* data, size_t size,
                                              const leafpack_group* group,
                                              const leafpack_call_options* options,
                                              leafpack_work** work);
LEAFPACK_CALL leafpack_gather_bytes(const void* data, size_t size, int32_t root,
                                    const leafpack_group* group,
                                    const leafpack_call_options* options,
                                    leafpack_result** result);
LEAFPACK_CALL leafpack_gather_bytes_async(const void* data, size_t size, int32_t root,
                                          const leafpack_group* group,
                                          const leafpack_call_options* options,
                                          leafpack_work** work);
/* data[i], of sizes[i] bytes, goes to rank i of the group; `count` is 0 beside the root. */
LEAFPACK_CALL leafpack_scatter_bytes(const void* const* data, const size_t* sizes, size_t count,
                                     int32_t root, const leafpack_group* group,
                                     const leafpack_call_options* options,
                                     leafpack_result** result);
LEAFPACK_CALL leafpack_scatter_bytes_async(const void* const* data, const size_t* sizes,
                                           size_t count, int32_t root, const leafpack_group* group,
                                           const leafpack_call_options* options,
                                           leafpack_work** work);

/* ---- Transfers between two ranks --------------------------------------------------------------
 *
 * They match by sender and tag, in order. A send is over when the receiver has the whole tree, so two
 * ranks that both send first wait for each other: post one with isend or irecv. Being of two ranks alone and
 * in no order, a transfer that is refused for its arguments is an error on its own rank; the other side waits
 * for one that is made, by its own deadline. */

/* As `from` of receives: whoever sends first. */
#define LEAFPACK_ANY_RANK (-1)

LEAFPACK_CALL leafpack_send(const leafpack_tree* tree, int32_t to, const leafpack_group* group,
                            const leafpack_transfer_options* options);
LEAFPACK_CALL leafpack_isend(const leafpack_tree* tree, int32_t to, const leafpack_group* group,
                             const leafpack_transfer_options* options, leafpack_work** work);
/* Into `tree`, whose layout must be the sender's, or, where it is NULL, into a new tree. The result (may be
 * NULL where `tree` is not) has one tree and says who sent it. */
LEAFPACK_CALL leafpack_recv(const leafpack_tree* tree, int32_t from, const leafpack_group* group,
                            const leafpack_transfer_options* options, leafpack_result** result);
LEAFPACK_CALL leafpack_irecv(const leafpack_tree* tree, int32_t from, const leafpack_group* group,
                             const leafpack_transfer_options* options, leafpack_work** work);
LEAFPACK_CALL leafpack_send_bytes(const void* data, size_t size, int32_t to,
                                  const leafpack_group* group,
                                  const leafpack_transfer_options* options);
/* `data` is copied before this returns. */
LEAFPACK_CALL leafpack_isend_bytes(const void* data, size_t size, int32_t to,
                                   const leafpack_group* group,
                                   const leafpack_transfer_options* options, leafpack_work** work);
LEAFPACK_CALL leafpack_recv_bytes(int32_t from, const leafpack_group* group,
                                  const leafpack_transfer_options* options,
                                  leafpack_result** result);
LEAFPACK_CALL leafpack_irecv_bytes(int32_t from, const leafpack_group* group,
                                   const leafpack_transfer_options* options, leafpack_work** work);

/* ---- Works and results ------------------------------------------------------------------------ */

/* As `timeout_ms` of leafpack_work_wait: until the call ends, which its own deadline bounds. */
#define LEAFPACK_NO_TIMEOUT (-1)

/* Returns when the call is over, with its error (a new object at each call). LEAFPACK_DEADLINE_EXCEEDED
 * after `timeout_ms` (0 or more) says that the call goes on. */
LEAFPACK_CALL leafpack_work_wait(const leafpack_work* work, int64_t timeout_ms);
/* 1 if wait would not block, else 0. Never blocks. */
LEAFPACK_CALL leafpack_work_is_done(const leafpack_work* work, int32_t* done);
/* Asks to give the call up; wait then tells what became of it. */
LEAFPACK_CALL leafpack_work_cancel(const leafpack_work* work);
/* What the synchronous call gives. LEAFPACK_FAILED_PRECONDITION while the call is not over; the error of one
 * that failed. */
LEAFPACK_CALL leafpack_work_result(const leafpack_work* work, leafpack_result** result);
/* Of a collective, after wait; zeros of a transfer. */
LEAFPACK_CALL leafpack_work_stats(const leafpack_work* work, leafpack_stats* stats);
/* Does not end a call in flight: it is finished in the background, its leaves stay in use until then,
 * and an error of a collective is returned by the group's next call. */
LEAFPACK_API void leafpack_work_free(leafpack_work* work);

LEAFPACK_CALL leafpack_result_num_trees(const leafpack_result* result, size_t* num_trees);
/* LEAFPACK_OUT_OF_RANGE past the end. A tree that was written in place is that tree. */
LEAFPACK_CALL leafpack_result_tree(const leafpack_result* result, size_t index,
                                   leafpack_tree** tree);
LEAFPACK_CALL leafpack_result_num_strings(const leafpack_result* result, size_t* num_strings);
LEAFPACK_CALL leafpack_result_string(const leafpack_result* result, size_t index, const void** data,
                                    size_t* size);
/* Of a receive: the rank of the job that it came from; else LEAFPACK_FAILED_PRECONDITION. */
LEAFPACK_CALL leafpack_result_source(const leafpack_result* result, int32_t* rank);
LEAFPACK_API void leafpack_result_free(leafpack_result* result);

#ifdef __cplusplus
}  /* extern "C" */
#endif

#endif  /* LEAFPACK_BINDINGS_C_LEAFPACK_H_ */
