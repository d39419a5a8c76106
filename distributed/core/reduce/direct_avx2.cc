// For x86 machines with AVX2.
#include <cstdint>

#include "distributed/core/reduce/direct.h"
#include "distributed/core/reduce/ordered.h"

#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#elif defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx2")
#endif

namespace leafpack::reduce_internal {
namespace {

#ifdef __clang__  // it does not know the ivdep of these loops, and finds out for itself
#pragma clang diagnostic ignored "-Wunknown-pragmas"
#endif
#include "distributed/core/reduce/direct_kernels.h"

}  // namespace

DirectKernel FindAvx2Kernel(DirectType type, DirectOp op, int inputs) {
  return FindKernel(type, op, inputs);
}

}  // namespace leafpack::reduce_internal

#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute pop
#endif
