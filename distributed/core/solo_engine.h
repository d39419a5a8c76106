// The engine of a group of one rank: no channel, no agreement; calls are granted at once, frames are
// reduced where they are, and the data path changes nothing.
#ifndef LEAFPACK_DISTRIBUTED_CORE_SOLO_ENGINE_H_
#define LEAFPACK_DISTRIBUTED_CORE_SOLO_ENGINE_H_

#include <memory>

#include "distributed/core/engine.h"
#include "distributed/core/engine_impl.h"

namespace leafpack {

// `config.size` is 1.
std::shared_ptr<Engine> NewSoloEngine(EngineConfig config);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_SOLO_ENGINE_H_
