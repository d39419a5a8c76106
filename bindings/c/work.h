// What a transfer gives, once it is over.
#ifndef LEAFPACK_BINDINGS_C_WORK_H_
#define LEAFPACK_BINDINGS_C_WORK_H_

#include "bindings/c/handles.h"

namespace leafpack::c {

// Throws a Failure with the error of a transfer that failed.
leafpack_result ResultOf(const leafpack_work::Transfer& transfer);

}  // namespace leafpack::c

#endif  // LEAFPACK_BINDINGS_C_WORK_H_
