#include "distributed/messages/testing/tested_backend.h"

#include "distributed/backends/gloo/gloo_backend.h"

namespace leafpack::testing {

std::unique_ptr<Backend> TestedBackend() { return std::make_unique<GlooBackend>(); }

}  // namespace leafpack::testing
