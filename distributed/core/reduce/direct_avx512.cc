// For x86 machines with AVX-512 (F, BW, DQ, VL).
#include <cstdint>

#include "distributed/core/reduce/direct.h"
#include "distributed/core/reduce/ordered.h"

// Vectors of 64 bytes pay for loops that only read and write; clang takes them of itself.
#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#elif defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif

namespace leafpack::reduce_internal {
namespace {

#ifdef __clang__  // it does not know the ivdep of these loops, and finds out for itself
#pragma clang diagnostic ignored "-Wunknown-pragmas"
#endif
#include "distributed/core/reduce/direct_kernels.h"

}  // namespace

DirectKernel FindAvx512Kernel(DirectType type, DirectOp op, int inputs) {
  return FindKernel(type, op, inputs);
}

}  // namespace leafpack::reduce_internal

#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute pop
#endif
