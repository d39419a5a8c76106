// For every machine, with what the compiler takes for granted (SSE2, NEON).
#include <cstdint>

#include "distributed/core/reduce/direct.h"
#include "distributed/core/reduce/ordered.h"

namespace leafpack::reduce_internal {
namespace {

#ifdef __clang__  // it does not know the ivdep of these loops, and finds out for itself
#pragma clang diagnostic ignored "-Wunknown-pragmas"
#endif
#include "distributed/core/reduce/direct_kernels.h"

}  // namespace

DirectKernel FindBaseKernel(DirectType type, DirectOp op, int inputs) {
  return FindKernel(type, op, inputs);
}

#if defined(__x86_64__) && defined(__GNUC__)
bool HasAvx2() { return __builtin_cpu_supports("avx2"); }
bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
bool HasAvx2() { return false; }
bool HasAvx512() { return false; }
#endif

DirectKernel FindDirectKernel(DirectType type, DirectOp op, int inputs) {
  using Find = DirectKernel (*)(DirectType, DirectOp, int);
  static const Find find = HasAvx512() ? &FindAvx512Kernel : HasAvx2() ? &FindAvx2Kernel : &FindBaseKernel;
  return find(type, op, inputs);
}

}  // namespace leafpack::reduce_internal
