// The backend that the tests of this folder are linked with.
#ifndef LEAFPACK_DISTRIBUTED_MESSAGES_TESTING_TESTED_BACKEND_H_
#define LEAFPACK_DISTRIBUTED_MESSAGES_TESTING_TESTED_BACKEND_H_

#include <memory>

#include "distributed/core/backend.h"

namespace leafpack::testing {

// Defined by each program that links the tests.
std::unique_ptr<Backend> TestedBackend();

}  // namespace leafpack::testing

#endif  // LEAFPACK_DISTRIBUTED_MESSAGES_TESTING_TESTED_BACKEND_H_
